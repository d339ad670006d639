"""What runs between products: norms and residual sums, rotary positions, gates, and the loss.

Rates are in bytes as `estimate.elementwise.WIDTHS` counts them; those of the loss in bytes of
logits, for both of its passes. Letters: M tokens, D, F, V widths.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from shardwise.estimate.elementwise import WIDTHS
from shardwise.estimate.training.measured_rates import measured_sizes
from shardwise.measure.all_devices import AllDevices, Program
from shardwise.measure.sizes import sizes_of
from shardwise.measure.timing import Part
from shardwise.models.numerics import PLAIN_NORM, PLAIN_ROPE
from shardwise.runtime.blocks.elementwise import normalize, scale_and_shift
from shardwise.runtime.blocks.positions import RotaryAngles, rotate
from shardwise.runtime.dtypes import dtype
from shardwise.runtime.kernels import cpu

REPEATS = 4  # of the work of a layer in a program


class Between(NamedTuple):
    """Element-wise work of a width: what it computes, from how many arrays, and its bytes.

    Args:
        elements: numbers that are read and written, in multiples of an array.
    """

    function: Callable[..., Any]
    n_arrays: int
    elements: float


def block(platform: str) -> dict[str, Between]:
    """Element-wise work of a layer by the name of its width in `WIDTHS`."""
    tokens, width, _ = measured_sizes(platform)
    head_width = sizes_of(platform).head_width

    def residual(x_MD: Any, y_MD: Any) -> tuple[Any, Any]:
        x_MD = cpu.add_residual(x_MD, y_MD) if platform == "cpu" else x_MD + y_MD
        normalized = normalize(PLAIN_NORM, x_MD.astype(jnp.float32))
        scale = jnp.ones(width, jnp.float32)
        return x_MD, scale_and_shift(PLAIN_NORM, normalized, scale, dtype=x_MD.dtype)

    def rotary(x_MD: Any) -> Any:
        # Angles are computed once for all layers.
        angles = RotaryAngles(*(jnp.full((1, tokens, 1, head_width // 2), a) for a in (0.6, 0.8)))
        x_1MNH = x_MD.reshape(1, tokens, -1, head_width)
        return rotate(PLAIN_ROPE, x_1MNH, angles)

    def gate(g_MF: Any, u_MF: Any) -> Any:
        return jax.nn.silu(g_MF) * u_MF

    return {
        "D": Between(residual, 2, WIDTHS["D"] / 2),  # one of the two in a layer
        "heads": Between(rotary, 1, WIDTHS["heads"]),
        "F": Between(gate, 2, WIDTHS["F"]),
    }


def measure_elementwise(devices: AllDevices, dtype_name: str) -> Part[dict[str, float]]:
    """Bytes per second by width and pass: `D_forward`."""
    element_type = dtype(dtype_name)
    works = block(devices.platform)
    tokens, width, _ = measured_sizes(devices.platform)
    programs: list[Program] = []
    for work in works.values():
        arrays = [((tokens, width), element_type)] * work.n_arrays

        def both(*arrays: Any, work: Between = work) -> Any:
            results, pull_back = jax.vjp(work.function, *arrays)
            results = jax.lax.optimization_barrier(results)
            return results, pull_back(results)

        programs += [Program(f, arrays, repeats=REPEATS) for f in (work.function, both)]
    seconds = iter((yield from devices.seconds_of_each(programs)))
    rates = {}
    for name, work in works.items():
        n_bytes = element_type.dtype.itemsize * work.elements * tokens * width
        forward_s = next(seconds)
        rates[f"{name}_forward"] = n_bytes / forward_s
        rates[f"{name}_backward"] = 2 * n_bytes / max(next(seconds) - forward_s, forward_s / 2)
    return rates


def lookup_bytes_per_s(devices: AllDevices) -> Part[float]:
    """Bytes per second of an embedding's lookups and of the sums of their gradients."""

    def both(embedding_VD: Any, tokens_M: Any, dy_MD: Any) -> Any:
        y_MD, pull_back = jax.vjp(lambda table_VD: table_VD[tokens_M], embedding_VD)
        return y_MD, pull_back(dy_MD)

    tokens, width, _ = measured_sizes(devices.platform)
    rows = sizes_of(devices.platform).table_rows
    arrays = [((rows, width), jnp.float32), ((tokens,), jnp.int32), ((tokens, width), jnp.float32)]
    seconds = yield from devices.seconds(Program(both, arrays))
    return 2 * 4 * tokens * width / seconds


def loss_bytes_per_s(devices: AllDevices) -> Part[float]:
    """Bytes of logits per second of the loss with its gradient."""
    rows, vocab = logits = measured_sizes(devices.platform).logits

    def loss(logits_MV: Any, targets_M: Any) -> Any:
        if devices.platform == "cpu":
            return cpu.cross_entropy(logits_MV[None], targets_M[None])
        target_M = jnp.take_along_axis(logits_MV, targets_M[:, None], axis=-1)[:, 0]
        return (jax.nn.logsumexp(logits_MV, axis=-1) - target_M).sum()

    arrays = [(logits, jnp.float32), ((rows,), jnp.int32)]
    seconds = yield from devices.seconds(Program(jax.value_and_grad(loss), arrays))
    return 4 * rows * vocab / seconds
