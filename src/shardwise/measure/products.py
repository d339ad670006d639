"""Products of activations and weights, with those of their gradients, by shape and dtype.

Letters: M rows (tokens), I inputs, O outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from shardwise.measure.all_devices import AllDevices
from shardwise.measure.fit import Fit, fitted
from shardwise.runtime.dtypes import dtype
from shardwise.runtime.kernels import cpu

SHAPES = (  # M, I, O
    (64, 384, 384),
    (512, 192, 192),
    (1024, 192, 768),
    (1024, 768, 192),
    (384, 384, 1536),
    (2048, 128, 320),
    (768, 768, 768),
    (256, 384, 3072),
    (1536, 96, 96),
)
KINDS = ("forward", "input", "weight")  # the product, and the gradients of its two operands


def product(platform: str) -> Callable[[Any, Any], Any]:
    """The product that training steps compute on a platform."""
    if platform == "cpu":
        return lambda x_MI, w_IO: cpu.matmul_einsum("mi,io->mo", x_MI, w_IO)
    return lambda x_MI, w_IO: jnp.einsum("mi,io->mo", x_MI, w_IO)


def measure_products(devices: AllDevices, dtype_name: str) -> Mapping[str, Fit]:
    """Fit the seconds of each kind of product to its FLOPs and bytes."""
    return {kind: fitted(rows(devices, dtype_name, kind)) for kind in KINDS}


def rows(
    devices: AllDevices, dtype_name: str, kind: str
) -> list[tuple[tuple[float, float, float], float]]:
    """((FLOPs, bytes, 1), seconds) of the products of one kind."""
    multiply = product(devices.platform)

    def run(*operands: Any) -> list[Any]:
        """Some products of different operands: one alone might take less than its program."""
        results = []
        for x_MI, w_IO, dy_MO in zip(operands[::3], operands[1::3], operands[2::3], strict=True):
            if kind == "forward":
                results.append(multiply(x_MI, w_IO))
                continue
            _, pull_back = jax.vjp(multiply, x_MI, w_IO)
            results.append(pull_back(dy_MO)[KINDS.index(kind) - 1])
        return results

    found = []
    element_type = dtype(dtype_name)
    for M, I, O in SHAPES:
        arrays = [(shape, element_type) for shape in ((M, I), (I, O), (M, O))]
        n = 3 if M * I * O < 1 << 27 else 1
        seconds = devices.seconds(run, arrays * n) / n
        n_bytes = element_type.dtype.itemsize * (M * I + I * O + M * O)
        found.append(((2.0 * M * I * O, float(n_bytes), 1.0), seconds))
    return found
