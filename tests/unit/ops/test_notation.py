"""The book's notation: every form is read, written back, or refused in words."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.errors import BadSharding
from shardwise.ops.einsum import Array
from shardwise.ops.notation import parse_array, parse_einsum
from tests.properties.layouts import einsums


def layout(array: Array) -> list[tuple[str, tuple[str, ...]]]:
    return [(d.name, d.axes) for d in array.dims]


@pytest.mark.parametrize(
    ("text", "name", "dims", "partial"),
    [
        ("A[I,J]", "A", [("I", ()), ("J", ())], ()),
        ("A[I_X,J]", "A", [("I", ("X",)), ("J", ())], ()),
        ("A[I_XY,J]", "A", [("I", ("X", "Y")), ("J", ())], ()),
        ("A[I_YX, J_Z]", "A", [("I", ("Y", "X")), ("J", ("Z",))], ()),
        ("A[I_{XY},J]", "A", [("I", ("XY",)), ("J", ())], ()),
        ("x[B_{data,fsdp},T,D]", "x", [("B", ("data", "fsdp")), ("T", ()), ("D", ())], ()),
        ("x[B_{ data , fsdp },T]", "x", [("B", ("data", "fsdp")), ("T", ())], ()),
        ("x[B_fsdp,D]", "x", [("B", ("fsdp",)), ("D", ())], ()),
        ("C[I,K] {U_X}", "C", [("I", ()), ("K", ())], ("X",)),
        ("C[I,K]{U_XY}", "C", [("I", ()), ("K", ())], ("X", "Y")),
        ("C[I,K]_{U_X}", "C", [("I", ()), ("K", ())], ("X",)),
        ("C[I,K] { U_X }", "C", [("I", ()), ("K", ())], ("X",)),
        ("C[I,K] {U_{data,fsdp}}", "C", [("I", ()), ("K", ())], ("data", "fsdp")),
        ("C[I,K] {U_fsdp}", "C", [("I", ()), ("K", ())], ("fsdp",)),
        ("In[B_X1,D]", "In", [("B", ("X", "1")), ("D", ())], ()),
        ("W_in[C',Hn]", "W_in", [("C'", ()), ("Hn", ())], ()),
        ("[I,J]", "", [("I", ()), ("J", ())], ()),
        ("loss[]", "loss", [], ()),
        (" A [ I , J_X ] ", "A", [("I", ()), ("J", ("X",))], ()),
    ],
)
def test_an_array(
    text: str, name: str, dims: list[tuple[str, tuple[str, ...]]], partial: tuple[str, ...]
) -> None:
    array = parse_array(text)
    assert (array.name, layout(array), array.partial) == (name, dims, partial)


@pytest.mark.parametrize(
    "text",
    [
        "A[I_X,J] . B[J_X,K_Y] -> C[I_X,K_Y]",
        "A[I_X,J] · B[J_X,K_Y] → C[I_X,K_Y]",
        "A[I_X,J]*B[J_X,K_Y]->C[I_X,K_Y]",
        "A[I_X,J] @ B[J_X,K_Y] -> C[I_X,K_Y]",
        "A[I_X,J] B[J_X,K_Y] -> C[I_X,K_Y]",
        "  A[ I_X , J ].B[J_X,K_Y]   ->   C[I_X,K_Y]  ",
    ],
)
def test_one_product_in_every_spelling(text: str) -> None:
    assert str(parse_einsum(text)) == "A[I_X,J] . B[J_X,K_Y] -> C[I_X,K_Y]"


@pytest.mark.parametrize(
    "text",
    [
        "A[I,J] . B[J,K] -> C[I,K]",
        "In[B_X,D] . W_in[D_X,F_Y] -> Tmp[B_X,F_Y]",
        "q[B,T,N,H] . k[B,S,N,H] -> s[B,N,T,S]",
        "x[B_{data,fsdp},T,D] . w[D_{fsdp,context},F] -> y[B_{data,fsdp},T,F]",
        "A[I,J_XY] . B[J_XY,K] -> C[I,K] {U_XY}",
        "A[I,J_{fsdp,data}] . B[J_{fsdp,data},K] -> C[I,K] {U_{fsdp,data}}",
        "a[J] . b[J] -> c[]",
    ],
)
def test_what_is_written_is_what_was_read(text: str) -> None:
    assert str(parse_einsum(text)) == text


@settings(max_examples=100)
@given(einsums("XYZ"))
def test_every_sharding_survives_being_written(einsum) -> None:
    assert parse_einsum(str(einsum)) == einsum


@given(st.sampled_from(["data", "fsdp", "tensor"]), einsums("XY"))
def test_long_names_of_axes_survive(name: str, einsum) -> None:
    text = str(parse_einsum(str(einsum).replace("_X", f"_{name}").replace("YX", "Y")))
    assert str(parse_einsum(text)) == text


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("A[I_X,J_X]", "uses mesh axis X twice: each chip would hold only blocks where both dims"),
        ("A[I_XX,J]", "A[I_XX,J] uses mesh axis X twice"),
        ("C[I_X,K] {U_X}", "uses mesh axis X twice"),
        ("A[I,I]", "A[I,I] has dim I twice. Give each dim its own letter."),
        ("A[I,J", '"A[I,J" is not an array. Write it as A[I_X,J] . B[J,K_Y] -> C[I_X,K_Y].'),
        ("A", '"A" is not an array'),
        ("", '"" is not an array'),
        ("A[I,]", '"" is not a dim. Write I, I_X, I_XY or I_{data,fsdp}.'),
        ("A[I,_X]", '"_X" is not a dim'),
        ("A[2I]", '"2I" is not a dim'),
        ("A[I_]", '"I_" is not a dim'),
        ("A[I-X]", '"I-X" is not a dim'),
        ("A[I] {X}", "is not an array"),
        ("A[[I]]", "is not an array"),
        ("9A[I]", "is not an array"),
    ],
)
def test_an_array_that_is_refused(text: str, told: str) -> None:
    with pytest.raises(BadSharding) as error:
        parse_array(text)
    assert told in str(error.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("A[I,J] . B[J,K]", "needs one arrow to its output"),
        ("A[I,J] -> B[I,J] -> C[I]", "needs one arrow"),
        ("A[I,J] -> C[I,J]", '"A[I,J]" has 1 arrays before the arrow, not 2.'),
        ("A[I,J].B[J,K].D[K,L] -> C[I,L]", "has 3 arrays before the arrow, not 2"),
        ("A[I,J] . B[J,K] -> ", "has 0 arrays after the arrow, not 1"),
        ("A[I,J] + B[J,K] -> C[I,K]", '"+ B[J,K]" is not an array'),
        ("A[I,J] . B[J,K] -> C[I,M]", "C[I,M] has dim M, which neither input has."),
        ("A[I,J] {U_X} . B[J,K] -> C[I,K]", "is a partial sum; reduce an input before"),
        ("A[I_X,J_X] . B[J,K] -> C[I,K]", "A[I_X,J_X] uses mesh axis X twice"),
    ],
)
def test_a_product_that_is_refused(text: str, told: str) -> None:
    with pytest.raises(BadSharding) as error:
        parse_einsum(text)
    assert told in str(error.value)


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(BadSharding) as error:
        parse_einsum("A[I_X,J_X] . B[J,J] -> C[I,M_YY]")
    assert len(error.value.problems) == 4


@settings(max_examples=300)
@given(st.text(alphabet="ABIJKXY_{}[],.->· U'1\n", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        einsum = parse_einsum(text)
    except BadSharding:
        return
    assert parse_einsum(str(einsum)) == einsum
