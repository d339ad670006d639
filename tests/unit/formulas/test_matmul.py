"""Sharded matmuls on real links: the book's worked times, padding, refusals."""

from __future__ import annotations

import pytest

from shardwise.errors import BadInput, BadShape, BadSharding, UnknownFigure, UnknownName
from shardwise.formulas.matmul import ShardResult, shard
from shardwise.hardware import parse_system
from shardwise.ops.collective import time_s
from shardwise.strategy.mesh import place

FSDP = "In[B_X,D] . W[D_X,F_Y] -> Out[B_X,F_Y]"
SIZES = {"B": 1024, "D": 8192, "F": 32768}


def solve(text: str, *, on: str = "v5e:4x4", grad: bool = False, lend: bool = False,
          **given: int) -> ShardResult:  # fmt: skip
    mesh = {k: n for k, n in given.items() if k in "XYZ"}
    sizes = {k: n for k, n in given.items() if k not in mesh}
    return shard(text, mesh=mesh, on=on, sizes=sizes, grad=grad, lend=lend)


def way(result: ShardResult, *steps: str) -> list[float]:
    """Seconds of the steps of the way that begins with these."""
    for one in (result.best, *result.others):
        if [s.expression for s in one.steps][: len(steps)] == list(steps):
            return [s.time_s for s in one.steps]
    raise AssertionError(f"no way begins with {steps}")


@pytest.mark.parametrize(
    ("axes", "n_bytes", "seconds"),
    [
        (("X",), 2 * 1024 * 4096 / 4, 2.3302e-5),
        (("X", "Y"), 2 * 1024 * 4096, 4.6603e-5),
        (("X",), 256, 2e-6),
    ],
)
def test_gathers_on_a_cube_of_v4(axes: tuple[str, ...], n_bytes: float, seconds: float) -> None:
    """Book §3, questions 2 and 3: bf16[B_X,D_Y] of 1024 x 4096 on 4x4x4, W = 9e10 an axis."""
    system = parse_system("v4:4x4x4")
    (placement,) = (
        p for p in place(system, {"X": 4, "Y": 4, "Z": 4}, order=("X", "Y", "Z")) if p.lengths
    )
    assert time_s("all_gather", n_bytes, placement.span(axes)) == pytest.approx(seconds, rel=1e-3)


def test_every_way_of_fsdp_on_lines() -> None:
    """v5e:4x4 has no wraparound: V (n-1) / (n W1) on each axis."""
    result = solve(FSDP, X=4, Y=4, **SIZES)
    line = 4.5e10 * 4 / 3
    weights = 2 * 8192 * 32768 / 4
    (gather,) = way(result, "AllGather_X(W[D_X,F_Y]) -> W[D,F_Y]")
    assert gather == pytest.approx(weights / line, rel=1e-12)
    exchange, scatter = way(result, "AllToAll_X(In[B_X,D]) -> In[B,D_X]")
    assert exchange == pytest.approx(2 * 1024 * 8192 / 4 / 4.5e10, rel=1e-12)
    assert scatter == pytest.approx(2 * 1024 * 32768 / 4 / line, rel=1e-12)
    assert result.best.comms_s == pytest.approx(exchange + scatter, rel=1e-12)


def test_the_best_way_is_the_cheapest() -> None:
    result = solve(FSDP, X=4, Y=4, **SIZES)
    costs = [w.upper_s for w in (result.best, *result.others)]
    assert costs == sorted(costs)
    assert len(costs) > 2
    # Many tokens: now the weights are the smaller array.
    many = solve(FSDP, X=4, Y=4, **{**SIZES, "B": 2**20})
    assert [s.expression for s in many.best.steps] == ["AllGather_X(W[D_X,F_Y]) -> W[D,F_Y]"]


def test_numbers_of_one_way() -> None:
    best = solve("A[I_X,J] . B[J,K_Y] -> C[I_X,K_Y]", X=4, Y=4, I=4096, J=4096, K=4096).best
    assert best.steps == ()
    assert best.flops_per_chip == 2 * 4096**3 / 16
    assert best.hbm_bytes_per_chip == 2 * 4096 * (1024 + 1024) + 2 * 1024 * 1024
    assert best.math_s == best.flops_per_chip / 1.97e14
    assert best.lower_s == best.upper_s == max(best.math_s, best.hbm_s)


def test_bytes_and_the_latency_floor_are_told() -> None:
    small = solve("A[I_X,J] . B[J,K] -> C[I,K]", X=4, I=8, J=8, K=8).best
    assert any(s.latency_bound for s in small.steps)
    big = solve("A[I,J_X] . B[J_X,K] -> C[I,K_X]", X=4, I=8192, J=8192, K=8192).best
    (scatter,) = big.steps
    assert (scatter.collective, scatter.axes) == ("reduce_scatter", ("X",))
    assert scatter.joined_bytes == 2 * 8192 * 8192
    assert scatter.received_bytes == 2 * 8192 * 8192 * 3 / 4
    assert not scatter.latency_bound


def test_mesh_axes_lie_straight_where_they_can() -> None:
    for mesh in ({"X": 4, "Y": 4}, {"X": 4, "Z": 1, "Y": 4}):
        placement = solve(FSDP, **mesh, **SIZES).placement
        assert all("all 4 on" in placement[a] for a in "XY")
    assert solve(FSDP, on="v5e:4x8", X=4, Y=8, **SIZES).placement == {
        "X": "all 4 on x (line)", "Y": "all 8 on y (line)",
    }  # fmt: skip


def test_lent_axes_make_a_gather_faster() -> None:
    text, sizes = "A[I,J_X] . B[J,K] -> C[I,K]", {"I": 4096, "J": 65536, "K": 64}
    alone, lent = (solve(text, on="v5p:4x4x4", X=4, lend=lend, **sizes) for lend in (False, True))
    gather = "AllGather_X(A[I,J_X]) -> A[I,J]"
    assert way(lent, gather)[0] <= way(alone, gather)[0] / 1.5


def test_gradients_are_solved_too() -> None:
    result = solve(FSDP, X=4, Y=4, grad=True, **SIZES)
    d_in, d_weight = result.gradients
    assert d_in.expression == "dOut[B_X,F_Y] . W[D_X,F_Y] -> dIn[B_X,D]"
    assert d_weight.expression == "In[B_X,D] . dOut[B_X,F_Y] -> dW[D_X,F_Y]"
    assert d_in.best.flops_per_chip == d_weight.best.flops_per_chip == result.best.flops_per_chip
    assert len(way(d_weight, "ReduceScatter_X(dW[D,F_Y] {U_X}) -> dW[D_X,F_Y]")) == 1
    assert solve(FSDP, X=4, Y=4, **SIZES).gradients == ()


def test_padding_is_told() -> None:
    result = solve("A[I_X,J] . B[J,K_Y] -> C[I_X,K_Y]", X=4, Y=4, I=1001, J=64, K=64)
    assert result.padding == ("I 1,001 does not divide over 4: padded to 1,004 (+0.30%).",)
    assert result.best.flops_per_chip == 2 * 251 * 64 * 16
    assert solve(FSDP, X=4, Y=4, **SIZES).padding == ()


def test_on_gpus() -> None:
    result = solve("A[I,J_X] . B[J_X,K] -> C[I,K]", on="h100:8", X=8, I=8192, J=8192, K=8192)
    (reduce,) = way(result, "AllReduce_X(C[I,K] {U_X}) -> C[I,K]")
    assert reduce == pytest.approx(2 * (2 * 8192**2) * 7 / 8 / 4.5e11, rel=1e-12)
    assert result.placement == {"X": "8 in the node"}


@pytest.mark.parametrize(
    ("given", "error", "told"),
    [
        ({"X": 3}, BadShape, "3 = 3 does not divide the 16 chips of v5e:4x4."),
        ({"X": 32}, BadShape, "does not divide the 16 chips"),
        ({"X": 0}, BadInput, "mesh axis X=0 is not between 1 and 1,099,511,627,776."),
        ({"I": 0}, BadInput, "dim I=0 is not between 1"),
        ({"I": -4}, BadInput, "dim I=-4 is not between 1"),
        ({"I": 2**50}, BadInput, "dim I=1,125,899,906,842,624 is not between"),
        ({"Q": 4}, BadInput, 'unknown dim "Q". Known: "I", "J", "K".'),
        ({"on": "v5x:4x4"}, UnknownName, 'unknown chip "v5x"'),
    ],
)
def test_what_cannot_be_solved(given: dict[str, int], error: type[Exception], told: str) -> None:
    with pytest.raises(error) as raised:
        solve("A[I_X,J] . B[J,K] -> C[I_X,K]", **{"X": 4, "I": 8, "J": 8, "K": 8, **given})
    assert told in str(raised.value)


def test_everything_that_is_missing_is_told_at_once() -> None:
    with pytest.raises(BadInput) as error:
        shard(FSDP, mesh={}, on="v5e:4x4", sizes={"B": 4})
    assert error.value.problems == (
        "mesh axis X has no size. Give --mesh X=4.",
        "mesh axis Y has no size. Give --mesh Y=4.",
        "dim F has no size. Give F=1024.",
        "dim D has no size. Give D=1024.",
    )


def test_dtypes() -> None:
    sizes = {"I": 8, "J": 8, "K": 8}
    with pytest.raises(UnknownName, match='unknown dtype "bf17"'):
        shard("A[I,J].B[J,K]->C[I,K]", mesh={}, on="v5e:4x4", sizes=sizes, dtype="bf17")
    with pytest.raises(UnknownFigure, match="h100 has no figure for the dense peak at int4"):
        shard("A[I,J].B[J,K]->C[I,K]", mesh={}, on="h100:8", sizes=sizes, dtype="int4")
    with pytest.raises(BadSharding):
        shard("A[I,J]", mesh={}, on="h100:8", sizes=sizes)
    one = shard("A[I,J].B[J,K]->C[I,K]", mesh={}, on="v5e:4x4", sizes=sizes, dtype="int8")
    assert one.best.hbm_bytes_per_chip == 3 * 64


def test_a_sum_over_two_axes_that_stays_partial() -> None:
    text = "A[I_Y,J] . B[J_X,K] -> C[I,K] {U_XY}"
    assert solve(text, X=2, Y=2, I=8, J=8, K=8).best.flops_per_chip == 2 * 8**3 / 4
