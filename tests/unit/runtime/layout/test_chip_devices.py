"""Which role of a mesh the devices of a chip lie along, and where they stand."""

from __future__ import annotations

import numpy as np
import pytest

import shardwise as sw
from shardwise.errors import NotDivisible
from shardwise.runtime.layout.chip_devices import device_layout
from shardwise.runtime.layout.mesh import arrange
from shardwise.strategy.layout import Layout
from shardwise.strategy.mesh import Mesh, place

MODEL = sw.ModelConfig.dense(
    name="tiny", n_layers=2, d_model=512, d_ff=1024, n_heads=4, n_kv_heads=2, d_head=128, vocab=2048
)
TWO, ONE = sw.hardware("7x:2x2x1"), sw.hardware("v5p:2x2x1")


def test_a_chip_of_one_device_keeps_its_layout() -> None:
    layout = Layout(mesh=Mesh(fsdp=4), zero=3, micro_batch=2)
    one_device = device_layout(layout, MODEL, ONE)
    assert (one_device.layout, one_device.role, one_device.devices_per_chip) == (layout, "", 1)


@pytest.mark.parametrize(
    ("layout", "role", "batch"),
    [
        (Layout(mesh=Mesh(fsdp=4), zero=3, micro_batch=6), "fsdp", (3, 1)),
        (Layout(mesh=Mesh(data=4), zero=1, micro_batch=2), "data", (1, 1)),
        (Layout(mesh=Mesh(data=2, fsdp=2), zero=3, micro_batch=4), "fsdp", (2, 1)),
        # One sequence at a time: fewer microbatches.
        (Layout(mesh=Mesh(fsdp=4), zero=3, micro_batch=1, n_microbatches=4), "fsdp", (1, 2)),
        # One sequence a step: heads.
        (Layout(mesh=Mesh(fsdp=4), zero=3, micro_batch=1), "tensor", (1, 1)),
    ],
)
def test_the_role_that_is_multiplied(layout: Layout, role: str, batch: tuple[int, int]) -> None:
    two_devices = device_layout(layout, MODEL, TWO)
    assert (two_devices.role, two_devices.devices_per_chip) == (role, 2)
    assert two_devices.layout.sizes == {**layout.sizes, role: 2 * layout.sizes[role]}
    assert (two_devices.layout.micro_batch, two_devices.layout.n_microbatches) == batch
    assert two_devices.layout.global_batch == layout.global_batch


def test_fsdp_is_not_cut_finer_than_the_model_is_wide() -> None:
    layout = Layout(mesh=Mesh(fsdp=512), zero=3, micro_batch=2)
    assert device_layout(layout, MODEL, sw.hardware("7x:8x8x8")).role == "data"


def test_what_no_role_can_take_is_refused_in_words() -> None:
    layout = Layout(mesh=Mesh(tensor=4), micro_batch=3)
    with pytest.raises(NotDivisible, match="3 x 1 sequences of a chip nor its 1/4 of the heads"):
        device_layout(layout, MODEL, TWO)


@pytest.mark.parametrize("role", ["data", "fsdp", "tensor"])
def test_devices_of_a_chip_are_neighbours_along_the_role(role: str) -> None:
    sizes = Mesh(fsdp=2, tensor=2).sizes
    devices = np.arange(8).reshape(1, 2, 2, 1, 2)  # the last: two of a chip
    placement = place(TWO, sizes)[0]
    arranged = arrange(placement, sizes, devices, role)
    # ROLES: data, fsdp, tensor, context, expert, pipe
    assert arranged.shape[:3] == tuple(n * (r == role) + n * 1 for r, n in list(sizes.items())[:3])
    axis = ("data", "fsdp", "tensor").index(role)
    pairs = np.moveaxis(arranged, axis, -1).reshape(-1, 2)
    assert sorted(map(tuple, pairs.tolist())) == [(0, 1), (2, 3), (4, 5), (6, 7)]
    assert sorted(arranged.ravel()) == list(range(8))


def test_chips_of_one_device_lie_where_the_placement_has_them() -> None:
    sizes = Mesh(fsdp=2, tensor=2).sizes
    placement = place(ONE, sizes)[0]
    arranged = arrange(placement, sizes, np.arange(4).reshape(1, 2, 2, 1, 1))
    assert arranged.shape == (1, 2, 2, 1, 1, 1)
    span = dict(placement.spans)["tensor"].rings[0]
    apart = {0: 2, 1: 1}[span.axis]
    assert arranged[0, 0, 1].item() - arranged[0, 0, 0].item() == apart
