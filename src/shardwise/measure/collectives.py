"""Collectives by kind, size of a group and bytes; all groups of the devices run theirs at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax

from shardwise.hardware.figure import GROUP_SIZES
from shardwise.measure.all_devices import AllDevices, Program
from shardwise.measure.fit import Fit, fitted_transfer
from shardwise.measure.sizes import sizes_of
from shardwise.measure.timing import Part

# kind -> (the collective, bytes that it joins in relation to those of an array on one device): V of
# the book, as `ops.collective` counts.
KINDS: dict[str, tuple[Callable[[Any, int], Any], bool]] = {
    "all_gather": (lambda x, n: lax.all_gather(x, "member", tiled=True), True),
    "reduce_scatter": (lambda x, n: lax.psum_scatter(x, "member", tiled=True), False),
    "all_reduce": (lambda x, n: lax.psum(x, "member"), False),
    "all_to_all": (lambda x, n: lax.all_to_all(x, "member", 0, 0, tiled=True), True),
    "permute": (
        lambda x, n: lax.ppermute(x, "member", [(i, (i + 1) % n) for i in range(n)]),
        False,
    ),
}


def group_sizes(n_devices: int) -> list[int]:
    """Sizes of the groups that are measured: powers of two that divide the devices."""
    return [size for size in GROUP_SIZES if n_devices % size == 0]


def measure_collectives(devices: AllDevices) -> Part[dict[str, Fit]]:
    """Fit the seconds of each kind in groups of each size to latency and bytes: `all_gather_4`."""
    cases = [(kind, size) for size in group_sizes(devices.n) for kind in KINDS]
    joined = sizes_of(devices.platform).joined
    programs = [program(kind, size, n) for kind, size in cases for n in joined]
    seconds = iter((yield from devices.seconds_of_each(programs)))
    fits = {}
    for kind, size in cases:
        times = size if KINDS[kind][1] else 1
        rows = [((1.0, 4.0 * n_numbers * times), next(seconds)) for n_numbers in joined]
        fits[f"{kind}_{size}"] = fitted_transfer(rows)
    return fits


def program(kind: str, size: int, n_numbers: int) -> Program:
    """A collective of one kind in groups of one size."""
    collective, _ = KINDS[kind]
    return Program(lambda x: collective(x, size), [((n_numbers,), jnp.float32)], group_size=size)
