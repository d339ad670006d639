"""The four cases of the sharded matmul, and what each leaves open. Book §3."""

from __future__ import annotations

import pytest

from shardwise.errors import BadSharding
from shardwise.ops.notation import parse_einsum
from shardwise.ops.sharded import Program, axes_of, choices, derive

SIZES = {"I": 128, "J": 256, "K": 512, "L": 8}
MESH = {"X": 4, "Y": 2}


def moves(program: Program) -> list[str]:
    return [str(m) for m in program.moves]


def derived(text: str) -> list[str]:
    return moves(derive(parse_einsum(text)))


def ways(text: str) -> list[list[str]]:
    return [moves(p) for p in choices(parse_einsum(text))]


@pytest.mark.parametrize(
    "text",
    [
        "A[I,J] . B[J,K] -> C[I,K]",
        "A[I_X,J] . B[J,K_Y] -> C[I_X,K_Y]",
        "A[L_X,I,J] . B[L_X,J,K] -> C[L_X,I,K]",
        "A[I_XY,J] . B[J,K] -> C[I_XY,K]",
        "A[I,J_X] . B[J_X,K] -> C[I,K] {U_X}",
        "A[I_Y,J_X] . B[J_X,K] -> C[I_Y,K] {U_X}",
    ],
)
def test_nothing_is_sent(text: str) -> None:
    """Case 1: no summed dim is sharded; and a sum that may stay partial."""
    program = derive(parse_einsum(text))
    assert program.moves == ()
    assert str(program.local) == text


def test_one_input_is_gathered() -> None:
    """Case 2: one input has its summed dim sharded."""
    assert derived("A[I,J_X] . B[J,K] -> C[I,K]") == ["AllGather_X(A[I,J_X]) -> A[I,J]"]
    assert derived("A[I,J] . B[J_X,K_Y] -> C[I,K_Y]") == ["AllGather_X(B[J_X,K_Y]) -> B[J,K_Y]"]


def test_one_input_is_gathered_or_the_other_sliced_and_the_sum_reduced() -> None:
    assert sorted(ways("A[I,J_X] . B[J,K] -> C[I,K]")) == [
        ["AllGather_X(A[I,J_X]) -> A[I,J]"],
        ["Slice_X(B[J,K]) -> B[J_X,K]", "AllReduce_X(C[I,K] {U_X}) -> C[I,K]"],
    ]


def test_partial_sums_are_reduced() -> None:
    """Case 3: both inputs have the summed dim sharded."""
    assert derived("A[I,J_X] . B[J_X,K] -> C[I,K]") == ["AllReduce_X(C[I,K] {U_X}) -> C[I,K]"]
    assert derived("A[I,J_X] . B[J_X,K] -> C[I,K_X]") == [
        "ReduceScatter_X(C[I,K] {U_X}) -> C[I,K_X]"
    ]
    assert derived("A[I,J_X] . B[J_X,K] -> C[I_X,K]") == [
        "ReduceScatter_X(C[I,K] {U_X}) -> C[I_X,K]"
    ]
    assert derived("A[I,J_XY] . B[J_XY,K] -> C[I,K]") == ["AllReduce_XY(C[I,K] {U_XY}) -> C[I,K]"]


def test_partial_sums_or_gathered_inputs() -> None:
    assert [
        "AllGather_X(A[I,J_X]) -> A[I,J]",
        "AllGather_X(B[J_X,K]) -> B[J,K]",
    ] in ways("A[I,J_X] . B[J_X,K] -> C[I,K]")


def test_one_axis_on_both_kept_dims() -> None:
    """Case 4: one of the inputs has to be gathered, and the output says which."""
    assert derived("A[I_X,J] . B[J,K_X] -> C[I_X,K]") == ["AllGather_X(B[J,K_X]) -> B[J,K]"]
    assert derived("A[I_X,J] . B[J,K_X] -> C[I,K_X]") == ["AllGather_X(A[I_X,J]) -> A[I,J]"]
    assert ["AllGather_X(A[I_X,J]) -> A[I,J]"] in ways("A[I_X,J] . B[J,K_X] -> C[I,K_X]")


def test_case_four_can_also_exchange_the_output() -> None:
    assert [
        "AllGather_X(A[I_X,J]) -> A[I,J]",
        "AllToAll_X(C[I,K_X]) -> C[I_X,K]",
    ] in ways("A[I_X,J] . B[J,K_X] -> C[I_X,K]")


def test_fsdp_and_tensor_of_the_book() -> None:
    """In[B_X,D] . W[D_X,F_Y]: the weights are gathered; the other way reduces the output."""
    text = "In[B_X,D] . W[D_X,F_Y] -> Tmp[B_X,F_Y]"
    assert derived(text) == ["AllGather_X(W[D_X,F_Y]) -> W[D,F_Y]"]
    assert ["AllToAll_X(In[B_X,D]) -> In[B,D_X]",
            "ReduceScatter_X(Tmp[B,F_Y] {U_X}) -> Tmp[B_X,F_Y]"] in ways(text)  # fmt: skip


def test_the_backward_pass_of_fsdp_reduces_the_weight_gradient() -> None:
    product = parse_einsum("In[B_X,D] . W[D_X,F] -> Out[B_X,F]")
    d_in, d_weight = (derive(g) for g in product.gradients())
    assert moves(d_in) == ["AllGather_X(W[D_X,F]) -> W[D,F]"]
    assert moves(d_weight) == ["ReduceScatter_X(dW[D,F] {U_X}) -> dW[D_X,F]"]


def test_the_backward_pass_of_data_parallelism_adds_the_weight_gradient() -> None:
    product = parse_einsum("In[B_X,D] . W[D,F] -> Out[B_X,F]")
    d_in, d_weight = (derive(g) for g in product.gradients())
    assert moves(d_in) == []
    assert moves(d_weight) == ["AllReduce_X(dW[D,F] {U_X}) -> dW[D,F]"]


def test_the_layout_that_is_asked_for_at_the_end() -> None:
    assert derived("A[I_X,J] . B[J,K] -> C[I,K]")[-1:] == ["AllGather_X(A[I_X,J]) -> A[I,J]"]
    assert ["AllGather_X(C[I_X,K]) -> C[I,K]"] in ways("A[I_X,J] . B[J,K] -> C[I,K]")
    assert derived("A[I,J] . B[J,K] -> C[I_X,K]") == ["Slice_X(C[I,K]) -> C[I_X,K]"]
    assert ["Slice_X(A[I,J]) -> A[I_X,J]"] in ways("A[I,J] . B[J,K] -> C[I_X,K]")


def test_a_partial_sum_is_left_when_it_is_asked_for() -> None:
    assert ways("A[I,J_X] . B[J_X,K] -> C[I,K] {U_X}") == [[]]
    assert ways("A[I,J_X] . B[J,K] -> C[I,K] {U_X}") == [["Slice_X(B[J,K]) -> B[J_X,K]"]]


def test_a_partial_sum_that_nothing_leaves() -> None:
    with pytest.raises(BadSharding, match="to stay a partial sum over X, but no summed dim"):
        derive(parse_einsum("A[I_X,J] . B[J,K] -> C[I,K] {U_X}"))


def test_bytes_are_those_of_the_array_that_is_joined() -> None:
    """V: the array summed over the shards of the axes that the move runs over, not of others."""
    gather = derive(parse_einsum("A[I_Y,J_X] . B[J,K] -> C[I_Y,K]")).moves[0]
    assert gather.joined_bytes(SIZES, MESH, 2) == 2 * 128 * 256 / 2
    scatter = derive(parse_einsum("A[I,J_X] . B[J_X,K_Y] -> C[I_X,K_Y]")).moves[0]
    assert scatter.joined_bytes(SIZES, MESH, 2) == 2 * 128 * 512 / 2
    reduce = derive(parse_einsum("A[I,J_XY] . B[J_XY,K] -> C[I,K]")).moves[0]
    assert reduce.joined_bytes(SIZES, MESH, 4) == 4 * 128 * 512
    ways_ = choices(parse_einsum("A[I_X,J] . B[J,K_X] -> C[I_X,K]"))
    (exchange,) = {m for p in ways_ for m in p.moves if str(m).startswith("AllToAll_X(C")}
    assert exchange.joined_bytes(SIZES, MESH, 1) == 128 * 512


def test_flops_of_the_fullest_chip() -> None:
    program = derive(parse_einsum("A[I_X,J] . B[J,K_Y] -> C[I_X,K_Y]"))
    assert program.local_flops(SIZES, MESH) == 2 * 128 * 256 * 512 / 8
    assert program.local_flops({**SIZES, "I": 129}, MESH) == 2 * 33 * 256 * 256
    summed = derive(parse_einsum("A[I,J_XY] . B[J_XY,K] -> C[I,K]"))
    assert summed.local_flops(SIZES, MESH) == 2 * 128 * 256 * 512 / 8
    same = derive(parse_einsum("A[I_X,J] . B[J,K] -> C[I,K]"))
    assert same.local_flops(SIZES, MESH) == 2 * 128 * 256 * 512


def test_axes_in_the_order_in_which_they_are_named() -> None:
    assert axes_of(parse_einsum("A[I_Z,J_X] . B[J,K_Y] -> C[I,K] {U_W}")) == ("Z", "X", "Y", "W")
