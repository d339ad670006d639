"""Products of activations and weights, with those of their gradients, by shape and dtype.

Letters: M rows (tokens), I inputs, O outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from shardwise.measure.all_devices import AllDevices, Program
from shardwise.measure.fit import Fit, fitted
from shardwise.measure.sizes import sizes_of
from shardwise.measure.timing import Part
from shardwise.runtime.dtypes import dtype
from shardwise.runtime.kernels import cpu

KINDS = ("forward", "input", "weight")  # the product, and the gradients of its two operands


def product(platform: str) -> Callable[[Any, Any], Any]:
    """The product that training steps compute on a platform."""
    if platform == "cpu":
        return lambda x_MI, w_IO: cpu.matmul_einsum("mi,io->mo", x_MI, w_IO)
    return lambda x_MI, w_IO: jnp.einsum("mi,io->mo", x_MI, w_IO)


def measure_products(devices: AllDevices, dtype_name: str) -> Part[Mapping[str, Fit]]:
    """Fit the seconds of each kind of product to its FLOPs and bytes."""
    element_type = dtype(dtype_name)
    programs = []
    sizes = sizes_of(devices.platform)
    for kind in KINDS:
        for M, I, O in sizes.products:
            arrays = [(shape, element_type) for shape in ((M, I), (I, O), (M, O))]
            repeats = sizes.large_repeats if sizes.large <= M * I * O else sizes.repeats
            programs.append(Program(product_of(devices.platform, kind), arrays, repeats=repeats))
    seconds = iter((yield from devices.seconds_of_each(programs)))
    element_bytes = element_type.dtype.itemsize
    fits = {}
    for kind in KINDS:
        rows = []
        for M, I, O in sizes.products:
            amounts = (2.0 * M * I * O, element_bytes * (M * I + I * O + M * O), 1.0)
            rows.append((amounts, next(seconds)))
        fits[kind] = fitted(rows)
    return fits


def product_of(platform: str, kind: str) -> Callable[..., Any]:
    """A function of x_MI, w_IO and dy_MO that returns their product of a kind."""
    return of_kind(product(platform), kind)


def of_kind(multiply: Callable[[Any, Any], Any], kind: str) -> Callable[..., Any]:
    """A function of x, w and dy: the product of x and w, or the gradient of one of them."""

    def run(x: Any, w: Any, dy: Any) -> Any:
        if kind == "forward":
            return multiply(x, w)
        _, pull_back = jax.vjp(multiply, x, w)
        return pull_back(dy)[KINDS.index(kind) - 1]

    return run
