"""Goodput: the share of a long run's time spent on new steps; the best checkpoint interval.

Letters: M mean time between failures of the whole run, tau work between two checkpoints, delta
time to write one (steps wait), R time to restart, from the failure to the first step. Failures are
independent with a constant rate, also during writes and restarts.

Sources: Young, "A first order approximation to the optimum checkpoint interval", CACM 17 (1974);
Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future
Generation Computer Systems 22 (2006).
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

from shardwise.arrays import Num, maximum, minimum, sqrt, where
from shardwise.errors import BadInput

_MTBF = "time between failures"
_LARGEST_EXPONENT = 700.0  # e^x overflows above 709; goodput is 0 long before


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """Shares of the wall time; the four add up to one.

    Args:
        steps: new steps, the goodput.
        writing: completed checkpoints.
        redone: steps and writes lost in failures, half an interval each if failures are rare.
        restarting: from a failure to the next step, including failed restarts.
    """

    steps: Num
    writing: Num
    redone: Num
    restarting: Num


def mtbf_of_run(mtbf_s: Num, n: Num) -> Num:
    """M = mtbf / n: seconds between failures of a run that stops when any of its n parts fails.

    Args:
        mtbf_s: seconds between failures of one part: a chip, or a node.
        n: chips or nodes.
    """
    return mtbf_s / n


def checkpoint_write_s(state_bytes: Num, bytes_per_s: Num) -> Num:
    """delta = state / bandwidth: seconds to write one checkpoint, all chips together.

    Args:
        state_bytes: weights with their master copy, and optimizer state.
        bytes_per_s: write bandwidth of the storage for all chips together.
    """
    return state_bytes / bytes_per_s


def first_order_interval_s(mtbf_s: Num, write_s: Num) -> Num:
    """sqrt(2 delta M): best interval if writing takes far less than M, seconds. Young (1974)."""
    return sqrt(2 * write_s * mtbf_s)


def best_interval_s(mtbf_s: Num, write_s: Num) -> Num:
    """Work between two checkpoints for the highest goodput, tau in seconds.

    sqrt(2 delta M) (1 + x / 3 + x^2 / 9) - delta with x = sqrt(delta / 2M), and M if writing
    takes 2M or longer. Daly (2006). It does not depend on the time to restart.

    >>> round(best_interval_s(24 * 60, 5))  # minutes
    117

    Raises:
        BadInput: times out of range, or a write time of 0: then no interval is best.
    """
    _refuse(_MTBF, mtbf_s, mtbf_s > 0, "above 0")
    _positive("time to write a checkpoint", write_s)
    x = sqrt(write_s / (2 * mtbf_s))
    series = first_order_interval_s(mtbf_s, write_s) * (1 + x / 3 + x**2 / 9) - write_s
    return where(write_s < 2 * mtbf_s, series, mtbf_s)


def goodput(mtbf_s: Num, interval_s: Num, write_s: Num, restart_s: Num) -> Goodput:
    """Shares of wall time; new steps get e^(-R/M) x / (e^x - 1) tau / (tau + delta).

    With x = (tau + delta) / M: Daly (2006), his complete cost function as a share. For large M it
    is 1 - delta / tau - (R + tau / 2) / M: a failure costs a restart and half an interval.

    Args:
        mtbf_s: M, of the whole run (see `mtbf_of_run`); infinite for a run without failures.
        interval_s: tau, work between two checkpoints.
        write_s: delta, for which a checkpoint stops the steps.
        restart_s: R, including detection, replacement of the part, and loading the checkpoint.

    Raises:
        BadInput: times out of range.
    """
    _refuse(_MTBF, mtbf_s, mtbf_s > 0, "above 0")
    _positive("checkpoint interval", interval_s)
    _not_negative("time to write a checkpoint", write_s)
    _not_negative("time to restart", restart_s)
    segment = interval_s + write_s
    x = minimum(maximum(segment / mtbf_s, sys.float_info.min), _LARGEST_EXPONENT)
    complete = x / _expm1(x)
    restarting = -_expm1(-restart_s / mtbf_s)
    running = 1 - restarting
    return Goodput(
        steps=running * complete * interval_s / segment,
        writing=running * complete * write_s / segment,
        redone=running * (1 - complete),
        restarting=restarting,
    )


def _expm1(x: Num) -> Num:
    """Elementwise e^x - 1."""
    if isinstance(x, int | float):
        return math.expm1(x)
    import numpy as np

    return np.expm1(x)


def _positive(name: str, value: Num) -> None:
    _refuse(name, value, (value > 0) & (value < math.inf), "above 0 and finite")


def _not_negative(name: str, value: Num) -> None:
    _refuse(name, value, (value >= 0) & (value < math.inf), "0 or above, and finite")


def _refuse(name: str, value: Num, legal: Num, limit: str) -> None:
    """Raise unless a number, or every element of an array, is `legal`."""
    all_legal = legal if isinstance(legal, bool) else legal.all()
    if not all_legal:
        raise BadInput(f"{name} must be {limit}, not {value}.")
