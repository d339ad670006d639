"""The time of one collective, against the book's numbers and the sharded matmul's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardwise as sw
from shardwise.errors import BadInput, NoStrategy, UnknownName
from shardwise.formulas.collective_time import collective_time, physical_mesh
from shardwise.ops.collective import KINDS

V = 2.0 * 2048 * 8192  # bytes of bf16[2048, 8192], of §3's quiz


def test_a_line_of_four_as_in_the_book() -> None:
    """§3: 4x4 has no wraparound; three hops of a quarter over one link of 4.5e10 B/s: 560 us."""
    result = collective_time("all_gather", V, sw.hardware("v5e:4x4"), ["X"])
    assert result.time_s == pytest.approx(559e-6, rel=0.01)
    assert result.links == {"X": "all 4 on x (line)"}
    assert result.latency_s == pytest.approx(3e-6)


def test_a_ring_as_in_the_book() -> None:
    """§3: V / 9e10 = 377 us over an axis of 16 that wraps."""
    result = collective_time("all_gather", V, sw.hardware("v5e:16x16"), ["Y"])
    assert result.time_s == pytest.approx(V / 9e10, rel=0.01)


def test_kinds_relate_as_in_the_book() -> None:
    """§3: ReduceScatter as AllGather, AllReduce twice, AllToAll a quarter of it on a ring."""
    system = sw.hardware("v5e:16x16")
    seconds = {kind: collective_time(kind, V, system, ["X"]).transfer_s for kind in KINDS}
    assert seconds["reduce_scatter"] == seconds["all_gather"]
    assert seconds["all_reduce"] == pytest.approx(2 * seconds["all_gather"])
    assert seconds["all_to_all"] == pytest.approx(seconds["all_gather"] / 4)


def test_levels_of_gpus() -> None:
    """§12: in a node 450 GB/s a GPU; across nodes the node's 400 GB/s carry the whole array."""
    result = collective_time("all_gather", 1e9, sw.hardware("h100:64"))
    node, network = result.levels
    assert (node.name, network.name) == ("node", "scale-out")
    assert node.transfer_s == pytest.approx(1e9 * 7 / 8 / 450e9)
    assert network.transfer_s == pytest.approx(1e9 * 7 / 8 / 400e9)
    assert result.transfer_s == max(node.transfer_s, network.transfer_s)


def test_small_arrays_are_bound_by_latency() -> None:
    system = sw.hardware("v5p:4x4x4")
    limit = collective_time("all_gather", 1e6, system, ["Z"]).latency_bound_bytes
    below = collective_time("all_gather", limit / 2, system, ["Z"])
    above = collective_time("all_gather", limit * 2, system, ["Z"])
    assert below.time_s == below.latency_s > below.transfer_s
    assert above.time_s == above.transfer_s == pytest.approx(2 * above.latency_s)


def test_an_axis_of_a_mesh_of_ones_own() -> None:
    result = collective_time(
        "all_reduce", 1e8, sw.hardware("v5e:4x4"), ["model"], {"data": 2, "model": 8}
    )
    assert result.n_chips == 8


@given(
    kind=st.sampled_from(KINDS),
    size=st.floats(1, 1e12),
    factor=st.floats(1, 1e3),
    machine=st.sampled_from(["v5e:4x8", "v5p:4x4x8", "h100:32", "v5e:16x16*2"]),
)
def test_more_bytes_are_never_faster(kind: str, size: float, factor: float, machine: str) -> None:
    system = sw.hardware(machine)
    smaller, larger = (collective_time(kind, n, system) for n in (size, size * factor))
    assert smaller.time_s <= larger.time_s
    assert larger.transfer_s == pytest.approx(
        max(level.transfer_s for level in larger.levels), rel=1e-9
    )


def test_physical_axes() -> None:
    assert physical_mesh(sw.hardware("v5p:2x2x4")) == {"X": 2, "Y": 2, "Z": 4}
    assert physical_mesh(sw.hardware("h100:4")) == {"X": 4}


def test_what_does_not_go_is_refused() -> None:
    system = sw.hardware("v5e:4x4")
    with pytest.raises(UnknownName, match='unknown mesh axis "Q"'):
        collective_time("all_gather", 1e6, system, ["Q"])
    with pytest.raises(UnknownName, match='unknown collective "broadcast"'):
        collective_time("broadcast", 1e6, system)
    with pytest.raises(BadInput, match="0 bytes"):
        collective_time("all_gather", 0, system)
    with pytest.raises(NoStrategy):
        collective_time("all_gather", 1e6, system, ["X"], {"X": 5})
