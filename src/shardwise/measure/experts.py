"""Products of experts, each of its own tokens, with those of their gradients.

Letters: R tokens of all experts, E experts, I and J widths.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from shardwise.measure.all_devices import AllDevices, Program
from shardwise.measure.products import KINDS, of_kind
from shardwise.measure.sizes import sizes_of
from shardwise.measure.timing import Part
from shardwise.runtime.kernels.grouped_matmul import grouped_matmul


def measure_experts(devices: AllDevices) -> Part[dict[str, float]]:
    """FLOP/s of each kind of product in bf16; none where experts are not measured."""
    sizes = sizes_of(devices.platform).experts
    if sizes is None:
        yield []
        return {}
    E, R, I, J = sizes
    arrays = [(shape, jnp.bfloat16) for shape in ((R, I), (E, I, J), (R, J))]
    multiply = product(devices.platform)
    programs = [Program(of_kind(multiply, kind), arrays) for kind in KINDS]
    seconds = yield from devices.seconds_of_each(programs)
    return {kind: 2 * R * I * J / kind_s for kind, kind_s in zip(KINDS, seconds, strict=True)}


def product(platform: str) -> Callable[[Any, Any], Any]:
    """The product of experts that have equally many tokens."""

    def multiply(x_RI: Any, w_EIJ: Any) -> Any:
        n_experts = len(w_EIJ)
        sizes_E = jnp.full(n_experts, len(x_RI) // n_experts, jnp.int32)
        return grouped_matmul(platform, x_RI, w_EIJ, sizes_E)

    return multiply
