"""Run time, chip-hours, money, energy and MFU from a step time. Book §4 (MFU), §6 (days)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shardwise.errors import BadInput
from shardwise.units import HOUR

REFERENCE_MFU = 0.4  # what the book assumes for a large training run, §6


@dataclass(frozen=True, slots=True)
class Run:
    """A whole run. `usd` is None where the chip has no public price."""

    seconds: float
    chip_hours: float
    usd: float | None


def run(
    step_s: float, tokens: float, tokens_per_step: float, n_chips: int, price: float | None
) -> Run:
    """tokens / tokens per step, steps of `step_s` seconds each, at `price` dollars a chip-hour."""
    seconds = step_s * tokens / tokens_per_step
    hours = seconds * n_chips / HOUR
    return Run(seconds, hours, None if price is None else hours * price)


def energy_j(seconds: float, n_chips: int, power_w: float | None, pue: float = 1.0) -> float | None:
    """E = seconds chips power PUE, an upper bound for the chips of a run.

    Public figures of power are the most that a chip may draw (its thermal design power, TDP) or the
    highest measured; a chip that waits draws less. Hosts and switches draw their own, not counted.

    Args:
        seconds: wall time of the run.
        n_chips: chips that are powered.
        power_w: watts of one chip: `System.chip.power_w`.
        pue: energy of the whole building over that of its machines (power usage effectiveness), 1
            for the chips alone.

    Returns:
        Joules, or None where no public source gives the chip's power.

    Raises:
        BadInput: a PUE below 1, or one that is no number.
    """
    if not 1 <= pue < math.inf:
        raise BadInput(f"PUE {pue:g} is not 1 or above: a building draws what its machines draw.")
    return None if power_w is None else seconds * n_chips * power_w * pue


def mfu(model_flops: float, step_s: float, n_chips: int, flops_per_s: float) -> float:
    """Model FLOPs of a step over what the chips could do at their dense peak in that time."""
    return model_flops / (step_s * n_chips * flops_per_s)


def training_s(model_flops: float, n_chips: float, flops_per_s: float, mfu: float = 1.0) -> float:
    """T = FLOPs / (chips C MFU). Book §6."""
    return model_flops / (n_chips * flops_per_s * mfu)
