"""Meshes on machines: every placement uses every chip once."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.errors import BadShape, NoStrategy, UnknownFigure
from shardwise.hardware import Switched, Torus, parse_system
from shardwise.search.model_sizes import divisors
from shardwise.strategy.mesh import Mesh, Placement, place

TORI = ["v5e:4x4", "v5e:2x4", "v5e:16x16", "v5p:4x4x4", "v5p:4x4x8", "v5p:16x20x28", "v5p:2x2x1"]
GPUS = ["h100:8", "h100:4", "h100:64", "h100:1024", "gb200:72", "gb200:144"]


def coordinates(placement: Placement, chip: tuple[int, ...]) -> tuple[int, ...]:
    """Where a chip of a torus lies in the mesh: one digit for each run of each mesh axis."""
    return tuple(
        chip[ring.axis] // ring.stride % ring.size
        for _, span in placement.spans
        for ring in span.rings
    )


def sizes_of(placement: Placement) -> dict[str, int]:
    return {axis: span.size for axis, span in placement.spans if span.size > 1}


@st.composite
def splits(draw: st.DrawFn, n: int, names: str = "tensor context fsdp data") -> dict[str, int]:
    sizes = {}
    for name in names.split():
        sizes[name] = draw(st.sampled_from(divisors(n)))
        n //= sizes[name]
    return sizes


@given(st.sampled_from(TORI), st.data())
def test_every_chip_of_a_torus_has_one_place(name: str, data: st.DataObject) -> None:
    system = parse_system(name)
    sizes = data.draw(splits(system.n_chips))
    used = math.prod(sizes.values())
    found = place(system, sizes)
    assert found
    chips = list(itertools.product(*(range(n) for n in system.topology.shape)))
    for placement in found[: max(1, 600 // len(chips))]:
        assert sizes_of(placement) == {a: n for a, n in sizes.items() if n > 1}
        seen = Counter(coordinates(placement, chip) for chip in chips)
        assert len(seen) == used
        assert set(seen.values()) == {len(chips) // used}


@given(st.sampled_from(TORI), st.data())
def test_runs_close_only_over_whole_axes(name: str, data: st.DataObject) -> None:
    system = parse_system(name)
    for placement in place(system, data.draw(splits(system.n_chips))):
        taken: dict[int, int] = {}
        for ring in (r for _, span in placement.spans for r in span.rings):
            length = system.topology.shape[ring.axis]
            assert ring.stride == taken.get(ring.axis, 1)
            assert length % (ring.stride * ring.size) == 0
            whole = ring.stride * ring.size == length
            assert ring.closed == (whole and system.topology.wrapped[ring.axis])
            taken[ring.axis] = ring.stride * ring.size


@pytest.mark.parametrize("name", ["v5p:16x20x28"])
def test_the_whole_pod_as_one_axis(name: str) -> None:
    system = parse_system(name)
    (placement,) = place(system, {"fsdp": 8960})
    (span,) = [s for a, s in placement.spans if a == "fsdp"]
    assert [(r.size, r.stride, r.closed) for r in span.rings] == [
        (16, 1, True), (20, 1, True), (28, 1, True),
    ]  # fmt: skip
    assert (
        placement.describe("fsdp") == "all 16 on x (ring) + all 20 on y (ring) + all 28 on z (ring)"
    )
    assert placement.describe("tensor") == "not used"


def test_the_inner_axis_lies_together() -> None:
    system = parse_system("v5p:4x4x4")
    for placement in place(system, {"tensor": 4, "fsdp": 16}):
        assert all(r.stride == 1 for r in dict(placement.spans)["tensor"].rings)
    texts = {
        (p.describe("tensor"), p.describe("fsdp")) for p in place(system, {"tensor": 4, "fsdp": 16})
    }
    assert len(texts) == 2  # 4 on one axis, or 2 on each of two: x, y and z are alike
    split = next(t for t in texts if "2 of 4" in t[0])
    assert split[0].count("2 of 4 on") == 2
    assert "2 of 4 on" in split[1]
    assert "2 apart" in split[1]


def test_mesh_axes_that_fill_torus_axes_in_order() -> None:
    system = parse_system("v5e:4x8")
    placements = place(system, {"X": 4, "Y": 8}, order=("X", "Y"))
    assert (4, 8) in [p.lengths for p in placements]
    assert all(p.lengths in ((4, 8), None) for p in placements)


@pytest.mark.parametrize("lend", [False, True])
def test_idle_axes_are_lent_when_asked(lend: bool) -> None:
    system = parse_system("v5p:4x4x8")
    for placement in place(system, {"X": 4}, order=("X",), borrow=lend):
        span = dict(placement.spans)["X"]
        idle = 3 - len({r.axis for r in span.rings})
        assert len(span.borrowed) == (idle if lend else 0)
        assert not {r.axis for r in span.rings} & {r.axis for r in span.borrowed}


@given(st.sampled_from(GPUS), st.data())
def test_every_gpu_has_one_place(name: str, data: st.DataObject) -> None:
    system = parse_system(name)
    sizes = data.draw(splits(system.n_chips))
    room = min(system.topology.domain, system.n_chips)
    try:
        found = place(system, sizes)
    except NoStrategy:
        # Only the innermost axis may not straddle nodes unevenly.
        inner = next(n for n in sizes.values() if n > 1)
        assert room % inner
        return
    for placement in found:
        assert sizes_of(placement) == {a: n for a, n in sizes.items() if n > 1}
        tiers = [t for _, span in placement.spans for t in span.tiers]
        inside = math.prod(t.size for t in tiers if t.name == "node")
        assert room % inside == 0
        if math.prod(sizes.values()) == system.n_chips:
            assert inside == room
        if any(t.name == "scale-out" for t in tiers[:1]):
            assert math.gcd(tiers[0].size, room) == 1


def test_the_node_is_filled_from_the_inside_out() -> None:
    (placement,) = place(parse_system("h100:64"), {"tensor": 4, "fsdp": 16})
    assert placement.describe("tensor") == "4 in the node"
    assert placement.describe("fsdp") == "2 in the node + 8 across nodes"
    (placement,) = place(parse_system("gb200:144"), {"tensor": 8, "fsdp": 18})
    assert placement.describe("fsdp") == "9 in the node + 2 across nodes"


def test_sharp_reaches_the_tiers() -> None:
    for name, reduces in (("h100:64", False), ("h100:64,sharp=on", True)):
        (placement,) = place(parse_system(name), {"fsdp": 64})
        assert [t.reduces for t in dict(placement.spans)["fsdp"].tiers] == [reduces, reduces]


def test_slices_go_to_the_outermost_axis() -> None:
    system = parse_system("v5e:16x16*4")
    for placement in place(system, {"tensor": 8, "fsdp": 32, "data": 4}):
        assert placement.describe("data") == "4 across slices"
        assert dict(placement.spans)["fsdp"].size == 32
    for placement in place(system, {"tensor": 8, "fsdp": 128}):
        assert placement.describe("fsdp").endswith("4 across slices")
        assert dict(placement.spans)["fsdp"].ring_size == 32
    for placement in place(system, {"fsdp": 512, "data": 2}):
        assert placement.describe("data") == "2 across slices"
        assert placement.describe("fsdp").endswith("2 across slices")


@given(st.sampled_from(["v5e:4x4*2", "v5e:4x4*3", "v5p:4x4x4*6", "v5e:2x4*5"]), st.data())
def test_a_whole_mesh_over_slices(name: str, data: st.DataObject) -> None:
    system = parse_system(name)
    sizes = data.draw(splits(system.n_chips, "tensor fsdp"))
    sizes["data"] = system.n_chips // math.prod(sizes.values())
    for placement in place(system, sizes):
        assert sizes_of(placement) == {a: n for a, n in sizes.items() if n > 1}
        over = [t.size for _, s in placement.spans for t in s.tiers if t.name == "dcn"]
        assert math.prod(over) == system.n_slices
        on_torus = math.prod(s.ring_size for _, s in placement.spans)
        assert on_torus == system.chips_per_slice


@pytest.mark.parametrize(
    ("name", "sizes", "told"),
    [
        ("v5e:4x4", {"fsdp": 3}, "3 = 3 does not divide the 16 chips of v5e:4x4."),
        ("v5e:4x4", {"tensor": 2, "fsdp": 16}, "2 x 16 = 32 does not divide the 16 chips"),
        ("v5e:4x4", {"fsdp": 32}, "does not divide the 16 chips"),
        ("h100:24", {"tensor": 6, "fsdp": 4}, "tensor 6, fsdp 4 cannot be placed on h100:24"),
    ],
)
def test_a_mesh_that_no_placement_has(name: str, sizes: dict[str, int], told: str) -> None:
    with pytest.raises(NoStrategy) as error:
        place(parse_system(name), sizes)
    assert told in str(error.value)


def test_a_figure_that_a_placement_needs() -> None:
    with pytest.raises(UnknownFigure, match=r"v100 has no figure for scale_out\.egress"):
        place(parse_system("v100:64"), {"fsdp": 64})


def test_meshes() -> None:
    mesh = Mesh(fsdp=16, tensor=4)
    assert mesh.n_chips == 64
    assert mesh.sizes == {"data": 1, "fsdp": 16, "tensor": 4, "context": 1, "expert": 1, "pipe": 1}
    assert (str(mesh), str(Mesh())) == ("fsdp 16 x tensor 4", "one chip")
    with pytest.raises(BadShape) as error:
        Mesh(data=0, tensor=-1)
    assert error.value.problems == ("data 0 is below 1.", "tensor -1 is below 1.")


def test_machines_of_this_file_are_what_they_seem() -> None:
    assert all(isinstance(parse_system(n).topology, Torus) for n in TORI)
    assert all(isinstance(parse_system(n).topology, Switched) for n in GPUS)
