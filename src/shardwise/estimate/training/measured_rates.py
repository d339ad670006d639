"""Seconds of the work of a training step on a machine that `hw measure` has measured.

Element-wise work is measured on arrays of one size. Arrays of another size are in another cache, or
in none: their bytes take so much more or less as the memory bandwidth of the size says.

A figure that is missing takes no time. Between sizes that were measured, seconds per unit of work
are interpolated; beyond them they stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from shardwise import units
from shardwise.arrays import Num, maximum, where
from shardwise.estimate.elementwise import WIDTHS, widths
from shardwise.hardware import Chip
from shardwise.hardware.figure import (
    ATTENTION_LENGTHS,
    BETWEEN,
    GROUP_SIZES,
    MEMORY_KIB,
    MEMORY_STREAMS,
    memory_key,
)
from shardwise.models import ModelConfig

LOGIT_BYTES = 4.0  # the loss is computed in fp32
OPERATIONS = {"D": 2}  # in a layer, if there are several: both norms with their residual sums
KIB = 1024
FORWARD_SHARE = 1 / 3  # of what a layer takes whatever its sizes


# Blocks into which causal attention on CPUs splits its queries, each over the keys up to its last.
QUERY_BLOCKS = 4
MIN_BLOCKED_TOKENS = 512  # with fewer tokens there is one block


def n_query_blocks(n_tokens: int) -> int:
    """Number of blocks of equal size in which CPUs compute causal attention."""
    is_blocked = n_tokens >= MIN_BLOCKED_TOKENS and n_tokens % QUERY_BLOCKS == 0
    return QUERY_BLOCKS if is_blocked else 1


class MeasuredSizes(NamedTuple):
    """Sizes of the arrays on which `hw measure` times what runs between products.

    Args:
        tokens, width: of element-wise work.
        logits: rows and columns of the loss.
    """

    tokens: int
    width: int
    logits: tuple[int, int]


CPU_SIZES = MeasuredSizes(1024, 320, (512, 2048))
ACCELERATOR_SIZES = MeasuredSizes(8192, 4096, (4096, 65536))  # more than caches hold


def measured_sizes(kind: str) -> MeasuredSizes:
    """Those of a kind of chip: `cpu`, `gpu` or `tpu`."""
    return CPU_SIZES if kind == "cpu" else ACCELERATOR_SIZES


def is_measured(chip: Chip) -> bool:
    """Whether the chip has measured rates of training steps."""
    return bool(chip.training)


def measured_as(dtype: str) -> str:
    """The dtype of the rates for a dtype: 16 bits for all but fp32."""
    return "fp32" if dtype == "fp32" else "bf16"


def product_s(chip: Chip, dtype: str, kind: str, rows: Num, columns: Num, depth: Num) -> Num:
    """Seconds of one product.

    Args:
        kind: `forward`, or `input` and `weight` for gradients of its operands.
        depth: size of the contracted dim.
    """
    name = f"{measured_as(dtype)}_{kind}"
    elements = rows * depth + depth * columns + rows * columns
    n_bytes = units.bytes_per_element(measured_as(dtype)) * elements
    return (
        2 * rows * columns * depth * _per(chip, name)
        + n_bytes * _per(chip, f"{name}_bytes")
        + chip.training.get(f"{name}_start", 0.0)
    )


def experts_s_per_flop(chip: Chip, dtype: str, kind: str) -> float:
    """Seconds per FLOP of products of experts, each of its own tokens; 0 if not measured."""
    return _per(chip, f"{measured_as(dtype)}_experts_{kind}")


def attention_s_per_flop(chip: Chip, dtype: str, phase: str, length: float) -> float:
    """Seconds per FLOP of attention over sequences of a length."""
    name = "backward" if phase == "backward" else "forward"
    key = f"{measured_as(dtype)}_attention_{name}"
    return float(
        _between(length, ATTENTION_LENGTHS, [_per(chip, f"{key}_{n}") for n in ATTENTION_LENGTHS])
    )


def elementwise_s(
    chip: Chip,
    dtype: str,
    phase: str,
    config: ModelConfig,
    tensor: Num,
    copies: Num,
    tokens: Num | None = None,
) -> Num:
    """Seconds per token of what runs between the products of all layers.

    Args:
        phase: the backward pass has twice as many bytes.
        tensor: chips that share the sharded widths.
        copies: chips of these that have the same tokens of the residual.
        tokens: of a microbatch on a chip: larger arrays are in slower memory. By default those of
            the measurement.
    """
    sizes = measured_sizes(chip.kind)
    if tokens is None:
        tokens = sizes.tokens
    name = "backward" if phase == "backward" else "forward"
    repeats = 2.0 if phase == "backward" else 1.0
    key = measured_as(dtype)
    element_bytes = units.bytes_per_element(key)
    seconds: Num = 0.0
    for group in config.groups:
        replicated, sharded = widths(config, group.layer)
        for width, elements in (replicated | sharded).items():
            share = (copies if width in replicated else 1) / tensor
            like = width if width in BETWEEN else BETWEEN[0]  # of which the rate is known
            n_bytes = element_bytes * tokens * elements * share / OPERATIONS.get(width, 1)
            measured_elements = sizes.tokens * sizes.width * WIDTHS[like] / OPERATIONS.get(like, 1)
            rate_s = _per(chip, f"{key}_{like}_{name}")
            byte_s = _of_size(chip, rate_s, n_bytes, element_bytes * measured_elements)
            seconds = seconds + group.count * elements * share * byte_s
    return repeats * element_bytes * seconds


def layer_s(chip: Chip, phase: str) -> float:
    """Seconds that a pass through a layer takes whatever its sizes."""
    share = 1 - FORWARD_SHARE if phase == "backward" else FORWARD_SHARE
    return share * chip.training.get("layer", 0.0)


def loss_s(chip: Chip, logits: Num) -> Num:
    """Seconds of the loss and of its gradient."""
    n_bytes = LOGIT_BYTES * logits
    rows, columns = measured_sizes(chip.kind).logits
    measured_bytes = LOGIT_BYTES * rows * columns
    return n_bytes * _of_size(chip, _per(chip, "loss"), n_bytes, measured_bytes)


def lookup_s(chip: Chip, dtype: str, tokens: Num, width: Num) -> Num:
    """Seconds of an embedding's lookups, or of the sums of their gradients."""
    return units.bytes_per_element(measured_as(dtype)) * tokens * width * _per(chip, "lookup")


def update_bytes_per_s(chip: Chip) -> float:
    """Bytes that an update reads and writes a second."""
    return chip.training.get("update") or chip.need("hbm.bandwidth")


def collective_s(chip: Chip, kind: str, members: Num, joined_bytes: Num) -> Num:
    """Seconds of a collective of groups of chips; 0 of one chip alone."""
    sizes = [size for size in GROUP_SIZES if f"{kind}_{size}" in chip.collectives]
    starts = [chip.collectives.get(f"{kind}_{size}_start", 0.0) for size in sizes]
    per_byte = [1 / chip.collectives[f"{kind}_{size}"] for size in sizes]
    seconds = _between(members, sizes, starts) + joined_bytes * _between(members, sizes, per_byte)
    return where(members > 1, seconds, 0.0)


def has_collective(chip: Chip, kind: str) -> bool:
    """Whether a kind of collective was measured."""
    return any(f"{kind}_{size}" in chip.collectives for size in GROUP_SIZES)


def memory_s_per_byte(chip: Chip, n_bytes: Num) -> Num:
    """Seconds to read or write a byte of arrays of so many bytes together; 0 if not measured."""
    import numpy as np

    values = []
    for kib in MEMORY_KIB:
        rates = [chip.memory_bytes_per_s.get(memory_key(kib, n), 0.0) for n in MEMORY_STREAMS]
        if not all(rates):
            return 0.0
        values.append(float(np.median([1 / rate for rate in rates])))
    return _between(n_bytes / KIB, MEMORY_KIB, values)


def _of_size(chip: Chip, byte_s: float, n_bytes: Num, measured_bytes: float) -> Num:
    """Seconds of a byte of work on `n_bytes` that was measured on `measured_bytes`.

    The difference is that of the memory; no byte is faster than the memory of its size.
    """
    if not byte_s:
        return 0.0
    memory_s = memory_s_per_byte(chip, n_bytes)
    return maximum(byte_s + memory_s - memory_s_per_byte(chip, measured_bytes), memory_s)


def _per(chip: Chip, key: str) -> float:
    """Seconds of one FLOP or byte."""
    rate = chip.training.get(key)
    return 1 / rate if rate else 0.0


def _between(size: Num, sizes: Sequence[int], values: Sequence[float]) -> Num:
    """The value at a size, interpolated over the logarithms of the sizes with values."""
    import numpy as np

    return np.interp(np.log2(size), np.log2(sizes), values)
