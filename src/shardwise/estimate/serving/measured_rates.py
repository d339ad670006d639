"""Rates of this package's engine on a machine that `hw measure` has measured."""

from __future__ import annotations

from shardwise.arrays import Num, ceil_div, maximum
from shardwise.hardware import Chip
from shardwise.hardware.figure import PRODUCT_ROWS

# Dtype of weights -> that of measured products. The engine converts 8-bit weights alike, and those
# of 4 bits in groups, which take as long or longer.
MEASURED_AS = {"fp32": "fp32", "fp16": "bf16", "bf16": "bf16"}
NARROW = "int8"
KEYS_PER_STEP = 64  # keys that attention reads at a time


def is_measured(chip: Chip) -> bool:
    """Whether the chip has measured rates of serving."""
    return chip.serving is not None and bool(chip.product_flops_per_s)


def product_dtype(weights: str) -> str:
    """Dtype of products with weights of a dtype, of which `hw measure` finds the peak."""
    return MEASURED_AS.get(weights, "bf16")


def product_flops_per_s(chip: Chip, weights: str, rows: Num, *, head: bool = False) -> Num:
    """FLOP/s of a product of `rows` rows with weights of a dtype.

    Seconds per weight are interpolated between the numbers of rows that were measured; beyond them
    FLOP/s are constant.

    Args:
        head: whether it is the unembedding, whose one large product has rates of its own.
    """
    import numpy as np

    name = MEASURED_AS.get(weights, NARROW)
    if head and f"{name}_head_1" in chip.product_flops_per_s:
        name = f"{name}_head"
    flops_per_s = [chip.need(f"products.{name}_{rows}") for rows in PRODUCT_ROWS]
    weight_s = [2 * n / rate for n, rate in zip(PRODUCT_ROWS, flops_per_s, strict=True)]
    most = PRODUCT_ROWS[-1]
    inside = np.interp(np.clip(rows, 1, most), PRODUCT_ROWS, weight_s)
    return 2 * np.clip(rows, 1, most) / inside


def read_bytes_per_s(chip: Chip, weights: str, weight_bytes: float, *, head: bool = False) -> float:
    """Bytes of weights per second that a product of one row reads."""
    return float(product_flops_per_s(chip, weights, 1, head=head)) / 2 * weight_bytes


def padded_keys(context: Num) -> Num:
    """Keys that attention reads of a context: it reads whole steps of them."""
    return ceil_div(maximum(context, 1), KEYS_PER_STEP) * KEYS_PER_STEP
