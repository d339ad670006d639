"""Einsums over named dims: sizes, FLOPs and gradients."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.errors import BadSharding
from shardwise.ops.einsum import Array, Dim, Einsum, axes_text, local_size, shards
from shardwise.ops.notation import parse_array, parse_einsum, read_einsum
from tests.properties.layouts import einsums

PRODUCT = parse_einsum("A[I_X,J] . B[J_X,K_Y] -> C[I_X,K_Y]")


@pytest.mark.parametrize(
    ("axes", "text"),
    [
        (("X",), "X"),
        (("X", "Y"), "XY"),
        (("fsdp",), "fsdp"),
        (("data", "fsdp"), "{data,fsdp}"),
        (("X", "fsdp"), "{X,fsdp}"),
    ],
)
def test_axes_as_text(axes: tuple[str, ...], text: str) -> None:
    assert axes_text(axes) == text


def test_an_array_knows_its_axes() -> None:
    array = parse_array("A[I_XY,J,K_Z]")
    assert array.axes == ("X", "Y", "Z")
    assert [array.where(a) for a in "XYZW"] == ["I", "I", "K", None]
    assert str(array.with_axes({"J": ("X",)}, ("Z",))) == "A[I,J_X,K] {U_Z}"


def test_what_a_chip_holds() -> None:
    """int8[128,2048] as A[I_XY,J] on X=2, Y=8, Z=2 is 16,384 bytes a chip. Book §3, pop quiz 1."""
    mesh = {"X": 2, "Y": 8, "Z": 2}
    local = parse_array("A[I_XY,J]").local_elements({"I": 128, "J": 2048}, mesh)
    assert local == 16_384
    assert local * math.prod(mesh.values()) == 524_288


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("A[I,J]", (4, 128)),
        ("A[I_X,J]", (2, 128)),
        ("A[I_X,J_Y]", (2, 64)),
        ("A[I_XY,J]", (1, 128)),
        ("A[I,J_XY]", (4, 32)),
    ],
)
def test_local_shapes_of_the_book(text: str, shape: tuple[int, ...]) -> None:
    sizes, mesh = {"I": 4, "J": 128}, {"X": 2, "Y": 2}
    assert tuple(local_size(d, sizes, mesh) for d in parse_array(text).dims) == shape


@given(st.integers(1, 500), st.integers(1, 9), st.integers(1, 9))
def test_an_uneven_dim_is_padded_up(size: int, x: int, y: int) -> None:
    local = local_size(Dim("I", ("X", "Y")), {"I": size}, {"X": x, "Y": y})
    assert local == math.ceil(size / (x * y))
    assert shards(("X", "Y", "Z"), {"X": x, "Y": y}) == x * y


def test_fewer_are_held_than_the_product_runs_over() -> None:
    keys = Array("k", (Dim("S"), Dim("N", ("X",), "K")))
    assert str(keys) == "k[S,K_X]"
    assert keys.local_elements({"S": 10, "N": 64, "K": 8}, {"X": 4}) == 20


def test_flops_are_twice_the_product_of_all_dims() -> None:
    sizes = {"L": 2, "I": 3, "J": 5, "K": 7}
    assert PRODUCT.flops(sizes) == 2 * 3 * 5 * 7
    assert parse_einsum("A[L,I,J] . B[L,J,K] -> C[L,I,K]").flops(sizes) == 2 * 2 * 3 * 5 * 7
    assert PRODUCT.contracting == ("J",)
    assert PRODUCT.dims == ("I", "K", "J")


def test_dims_that_only_choose_cost_no_flops() -> None:
    product = read_einsum("x[T,D] . w[E,D,F] -> y[T,F]")
    chosen = Einsum(*product.inputs, product.output, chosen=("E",))
    sizes = {"T": 3, "D": 5, "E": 128, "F": 7}
    assert chosen.flops(sizes) == 2 * 3 * 5 * 7
    assert product.flops(sizes) == 128 * chosen.flops(sizes)


def test_the_gradients_are_einsums_again() -> None:
    left, right = PRODUCT.gradients()
    assert str(left) == "dC[I_X,K_Y] . B[J_X,K_Y] -> dA[I_X,J]"
    assert str(right) == "A[I_X,J] . dC[I_X,K_Y] -> dB[J_X,K_Y]"
    assert (left.contracting, right.contracting) == (("K",), ("I",))


def test_a_gradient_says_of_which_array_it_is() -> None:
    """Whatever the array is called: `down` is no gradient, `ddown` is the gradient of `down`."""
    down = parse_array("down[D]")
    assert (down.gradient_of, down.base) == ("", "down")
    assert (down.gradient().name, down.gradient().gradient_of) == ("ddown", "down")
    assert down.gradient().with_axes({"D": ("X",)}).base == "down"


@given(einsums("XY", sums=False), st.integers(1, 9), st.integers(1, 9))
def test_a_gradient_costs_what_its_product_costs(einsum: Einsum, a: int, b: int) -> None:
    sizes = {"I": a, "J": b, "K": a + 1, "L": 2, "M": 3}
    for gradient, of in zip(einsum.gradients(), einsum.inputs, strict=True):
        assert gradient.flops(sizes) == einsum.flops(sizes)
        assert gradient.output.dims == of.dims


@given(einsums("XY", sums=False))
def test_the_gradient_of_a_gradient_gives_the_product_back(einsum: Einsum) -> None:
    d_left, d_right = einsum.gradients()
    # d_left = dC . B -> dA: with respect to dC it is (ddA, B) -> ddC, the product itself.
    again = d_left.gradients()[0]
    assert [a.dims for a in (*again.inputs, again.output)] == [
        a.dims for a in (*einsum.inputs, einsum.output)
    ]
    # d_right = A . dC -> dB: with respect to dC it is (A, ddB) -> ddC.
    again = d_right.gradients()[1]
    assert [a.dims for a in (*again.inputs, again.output)] == [
        a.dims for a in (*einsum.inputs, einsum.output)
    ]


def test_a_sum_over_one_input_alone_is_refused() -> None:
    with pytest.raises(BadSharding) as error:
        parse_einsum("A[I,J] . B[K,L] -> C[I,L]")
    assert error.value.problems == (
        "dim J of A[I,J] is in neither B[K,L] nor the output: a sum over one input alone is not a "
        "matmul.",
        "dim K of B[K,L] is in neither A[I,J] nor the output: a sum over one input alone is not a "
        "matmul.",
    )
