"""Chip-hours, money and energy of a run; the price of FLOPs and of tokens. Book §6, §8."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shardwise.arrays import Num
from shardwise.errors import BadInput
from shardwise.units import HOUR


@dataclass(frozen=True, slots=True)
class Run:
    """Seconds, chip-hours and dollars of a whole run; `usd` is None without a price of the chip."""

    seconds: float
    chip_hours: float
    usd: float | None


def run(
    step_s: float, tokens: float, tokens_per_step: float, n_chips: int, price: float | None
) -> Run:
    """Time and cost of a run of tokens / tokens_per_step steps. Book §6.

    Args:
        step_s: seconds of one step.
        tokens: tokens of the whole run.
        tokens_per_step: tokens of the global batch.
        n_chips: chips that are paid for.
        price: dollars per chip-hour; None if unknown.
    """
    seconds = step_s * tokens / tokens_per_step
    hours = seconds * n_chips / HOUR
    return Run(seconds, hours, None if price is None else hours * price)


def energy_j(seconds: float, n_chips: int, power_w: float | None, pue: float = 1.0) -> float | None:
    """Joules of a run's chips, at most: seconds x chips x power x PUE.

    Published power is a chip's thermal design power (TDP) or the highest measured; an idle chip
    draws less. Hosts and switches are not included.

    Args:
        seconds: wall time of the run.
        n_chips: chips that are powered.
        power_w: watts of one chip, `System.chip.power_w`; None if unknown.
        pue: power usage effectiveness: energy of the data center divided by that of its machines; 1
            counts the chips alone.

    Returns:
        Joules, or None if no public source has the chip's power.

    Raises:
        BadInput: the PUE is below 1, infinite or NaN.
    """
    if not 1 <= pue < math.inf:
        raise BadInput(
            f"PUE must be at least 1, not {pue:g}: a data center draws at least as much as its "
            "machines."
        )
    return None if power_w is None else seconds * n_chips * power_w * pue


def rate_per_price(flops_per_s: Num, usd_per_hour: Num) -> Num:
    """FLOP/s for one dollar per hour, as in the book's price table. Book §8."""
    return flops_per_s / usd_per_hour


def flops_per_usd(flops_per_s: Num, usd_per_hour: Num) -> Num:
    """FLOPs that one dollar buys at peak: 3600 s times `rate_per_price`. Book §8."""
    return HOUR * flops_per_s / usd_per_hour


def usd_per_million_tokens(tokens_per_s_per_chip: Num, usd_per_chip_hour: Num) -> Num:
    """Dollars per million generated tokens of a fully loaded server. Book §8."""
    return usd_per_chip_hour / HOUR / tokens_per_s_per_chip * 1e6
