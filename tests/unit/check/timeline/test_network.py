"""Groups of devices put back on the links cost what the planner says of the same mesh axes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.check.timeline.network import Network
from shardwise.check.timeline.places import DevicePlaces
from shardwise.errors import BadInput
from shardwise.hardware import Torus, parse_system
from shardwise.ops.collective import KINDS, price
from shardwise.strategy.mesh import place
from tests.unit.check.timeline.places import row_major_places

MESHES = [
    ("v5e:16x16", {"tensor": 4, "fsdp": 64}),
    ("v5e:4x8", {"tensor": 8, "data": 4}),
    ("v5p:4x4x4", {"tensor": 4, "fsdp": 16}),
    ("v5p:4x4x8", {"tensor": 8, "context": 2, "fsdp": 8}),
    ("v5p:4x8x8", {"tensor": 2, "fsdp": 128}),
    ("v5e:4x4*2", {"tensor": 4, "fsdp": 4, "data": 2}),
    ("v5e:4x4*4", {"fsdp": 16, "data": 4}),
    ("h100:64", {"tensor": 8, "fsdp": 8}),
    ("h100:64", {"tensor": 2, "fsdp": 32}),
]


def laid(system, sizes, placement):
    """DevicePlaces of the mesh in its order, the inner axes last, where the placement puts them."""
    names = [a for a in ("data", "fsdp", "context", "tensor") if sizes.get(a, 1) > 1]
    index = np.indices([sizes[a] for a in names]).reshape(len(names), -1)
    shape = system.topology.shape if isinstance(system.topology, Torus) else (1,)
    chips = np.zeros((index.shape[1], len(shape)), dtype=np.int64)
    domains = np.zeros(index.shape[1], dtype=np.int64)
    inner_domains = 1
    inner_places = 1
    for name, along in reversed(list(zip(names, index, strict=True))):
        span = dict(placement.spans)[name]
        rest = along
        for ring in span.rings:
            rest, at = np.divmod(rest, ring.size)
            chips[:, ring.axis] += at * ring.stride
        for tier in span.tiers:
            rest, at = np.divmod(rest, tier.size)
            if tier.is_node:
                chips[:, 0] += at * inner_places
                inner_places *= tier.size
            else:
                domains += at * inner_domains
                inner_domains *= tier.size
    mesh = np.arange(index.shape[1]).reshape([sizes[a] for a in names])
    return names, mesh, DevicePlaces(chips=chips, domains=domains, cores=np.zeros_like(domains))


def groups_of(names, mesh, axes):
    at = [names.index(a) for a in axes]
    size = int(np.prod([mesh.shape[i] for i in at]))
    return np.moveaxis(mesh, at, range(-len(at), 0)).reshape(-1, size)


@pytest.mark.parametrize(("machine", "sizes"), MESHES)
def test_mesh_axes_cost_what_the_planner_says(machine, sizes):
    system = parse_system(machine)
    for placement in place(system, sizes):
        names, mesh, devices = laid(system, sizes, placement)
        network = Network(system, devices)
        for axes in [(n,) for n in names] + [tuple(names[-2:])]:
            for kind in [k for k in KINDS if k != "permute"]:
                route = network.route(kind, groups_of(names, mesh, axes))
                planned = price(kind, placement.span(axes))
                assert route.is_exact
                assert route.price.s_per_byte == pytest.approx(planned.s_per_byte, rel=1e-12)
                assert route.price.latency_s == pytest.approx(planned.latency_s, rel=1e-12)


@pytest.mark.parametrize(("machine", "sizes"), MESHES)
def test_neighbours_along_an_axis_cost_what_the_planner_says(machine, sizes):
    """Of one run only: a step of a mesh axis that lies on two goes over either of them."""
    system = parse_system(machine)
    for placement in place(system, sizes):
        names, mesh, devices = laid(system, sizes, placement)
        for name in names:
            span = dict(placement.spans)[name]
            if len(span.rings) + len(span.tiers) != 1:
                continue
            along = groups_of(names, mesh, (name,))
            pairs = np.stack([along, np.roll(along, -1, axis=1)], axis=-1).reshape(-1, 2)
            route = Network(system, devices).route("permute", pairs)
            assert route.price.s_per_byte == pytest.approx(price("permute", span).s_per_byte)


def test_groups_of_the_order_in_which_devices_are_numbered():
    """16x16 with (64, 4): four in a row along y; all of x and every fourth of y."""
    system = parse_system("v5e:16x16")
    network = Network(system, row_major_places(system))
    mesh = np.arange(256).reshape(64, 4)
    tensor = network.route("all_gather", mesh)
    assert (tensor.engines, tensor.price.s_per_byte) == (("y",), 3 / 4 / 45e9)
    fsdp = network.route("all_gather", mesh.T)
    assert fsdp.engines == ("x", "y")
    assert fsdp.price.s_per_byte == pytest.approx(1 / (2 * 45e9 * (1 + 1 / 4)))


def test_two_devices_of_a_chip_share_its_links():
    system = parse_system("7x:4x4x4")
    network = Network(system, row_major_places(system, devices_per_chip=2))
    devices = np.arange(128).reshape(64, 2)
    whole = network.route("all_gather", devices.reshape(1, 128))
    halves = network.route("all_gather", devices.T)
    assert halves.price.s_per_byte == pytest.approx(2 * whole.price.s_per_byte)
    inside = network.route("all_gather", devices)
    assert (inside.engines, inside.price.s_per_byte) == ((), 0.0)


def test_groups_that_are_no_runs_say_so():
    system = parse_system("v5e:4x4")
    network = Network(system, row_major_places(system))
    assert network.route("all_gather", np.array([[0, 1, 2, 3]])).is_exact
    assert not network.route("all_gather", np.array([[0, 1, 5]])).is_exact
    assert not network.route("all_gather", np.array([[0, 1, 3]])).is_exact


def test_a_permute_is_as_slow_as_its_fullest_link():
    system = parse_system("v5e:16x16")
    network = Network(system, row_major_places(system))
    ring = np.arange(16) * 16  # along x, which is closed
    for step, load in [(1, 1), (3, 3), (15, 1), (8, 8)]:
        pairs = np.stack([ring, np.roll(ring, -step)], axis=1)
        assert network.route("permute", pairs).price.s_per_byte == pytest.approx(load / 45e9)
    assert network.route("permute", np.array([[5, 5]])).price.s_per_byte == 0.0


def test_a_permute_between_slices_takes_the_network_of_the_datacenter():
    system = parse_system("v5e:4x4*2")
    network = Network(system, row_major_places(system))
    route = network.route("send_recv", np.stack([np.arange(16), np.arange(16, 32)], axis=1))
    assert (route.engines, route.price.s_per_byte) == (("dcn",), pytest.approx(1 / 3.125e9))


def test_a_device_that_the_machine_lacks_is_bad_input():
    system = parse_system("v5e:2x2")
    with pytest.raises(BadInput, match="names device 4"):
        Network(system, row_major_places(system)).route("all_reduce", np.array([[0, 4]]))


@given(st.sampled_from(KINDS), st.integers(0, 10**9), st.integers(0, 10**9))
def test_more_bytes_never_take_less(kind, few, more):
    system = parse_system("v5p:4x4x4")
    network = Network(system, row_major_places(system))
    route = network.route(kind, np.arange(64).reshape(32, 2))
    assert route.time_s(min(few, more)) <= route.time_s(max(few, more))


def ring(order):
    return [(a, b) for a, b in zip(order, (*order[1:], order[0]), strict=True)]


@pytest.mark.parametrize(
    ("name", "order"),
    [("v5e:4x2", (2, 4, 6, 7, 5, 3, 1, 0)), ("v5p:4x4x4", (0, 16, 32, 48))],
)
def test_the_two_directions_of_a_ring_share_no_link(name, order):
    network = Network(system=parse_system(name), places=row_major_places(parse_system(name)))
    forward = network.route("permute", np.array(ring(order)))
    backward = network.route("permute", np.array(ring(order[::-1])))
    assert forward.price == backward.price
    for one, other in zip(forward.engines, backward.engines, strict=True):
        assert {one, other} == {f"{one[0]} forward", f"{one[0]} backward"}


def test_a_ring_along_a_line_uses_both_directions_of_its_links():
    system = parse_system("v5e:4x2")
    network = Network(system=system, places=row_major_places(system))
    assert network.route("permute", np.array(ring((0, 2, 4, 6)))).engines == ("x",)
