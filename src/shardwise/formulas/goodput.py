"""Goodput: the share of a long run's time spent on new steps; the best checkpoint interval.

Letters, all in seconds: M mean time between failures of the whole run; tau time of the steps
between two checkpoints; delta time to write a checkpoint, during which no step runs; R time to
restart, from the failure to the first step. Failures are independent and have a constant rate, also
during writes and restarts.

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
    """Shares of the wall time of a run; the four add up to one.

    Args:
        steps: time of steps whose results are kept: the goodput.
        writing: time to write checkpoints, as far as writing completes.
        redone: time of steps and writes that a failure discards; half an interval per failure if
            failures are rare.
        restarting: time from a failure to the next step, including restarts that fail.
    """

    steps: Num
    writing: Num
    redone: Num
    restarting: Num


def mtbf_of_run(mtbf_s: Num, n: Num) -> Num:
    """M = mtbf / n: mean seconds between failures of a run that stops if any of n parts fails.

    Args:
        mtbf_s: mean seconds between failures of one part, a chip or a node.
        n: number of such parts.
    """
    return mtbf_s / n


def checkpoint_write_s(state_bytes: Num, bytes_per_s: Num) -> Num:
    """delta = state / bandwidth: seconds to write one checkpoint.

    Args:
        state_bytes: bytes of weights, their master copy, and optimizer state, of the whole model.
        bytes_per_s: write bandwidth of the storage for all chips together.
    """
    return state_bytes / bytes_per_s


def first_order_interval_s(mtbf_s: Num, write_s: Num) -> Num:
    """sqrt(2 delta M): the best interval in seconds if delta is far below M. Young (1974)."""
    return sqrt(2 * write_s * mtbf_s)


def best_interval_s(mtbf_s: Num, write_s: Num) -> Num:
    """The checkpoint interval with the highest goodput: tau in seconds.

    sqrt(2 delta M) (1 + x / 3 + x^2 / 9) - delta with x = sqrt(delta / 2M), and M if writing
    takes 2M or longer. Daly (2006). It does not depend on the time to restart.

    >>> round(best_interval_s(24 * 60, 5))  # minutes
    117

    Raises:
        BadInput: a time is out of range. A write time of 0 is too: the best interval would be 0.
    """
    _refuse(_MTBF, mtbf_s, mtbf_s > 0, "above 0")
    _positive("time to write a checkpoint", write_s)
    x = sqrt(write_s / (2 * mtbf_s))
    series = first_order_interval_s(mtbf_s, write_s) * (1 + x / 3 + x**2 / 9) - write_s
    return where(write_s < 2 * mtbf_s, series, mtbf_s)


def goodput(mtbf_s: Num, interval_s: Num, write_s: Num, restart_s: Num) -> Goodput:
    """Shares of the wall time of a run that writes checkpoints and restarts after failures.

    The share of new steps is e^(-R/M) x / (e^x - 1) tau / (tau + delta) with x = (tau + delta) / M:
    the complete cost function of Daly (2006), as a share. For large M it is close to
    1 - delta / tau - (R + tau / 2) / M: each failure costs a restart and half an interval.

    Args:
        mtbf_s: M, of the whole run (see `mtbf_of_run`); infinite for a run without failures.
        interval_s: tau, time of the steps between two checkpoints.
        write_s: delta, time for which a checkpoint stops the steps.
        restart_s: R: to detect the failure, replace the part and load the checkpoint.

    Raises:
        BadInput: a time is out of range.
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
    """Raise BadInput unless `legal` is true, for every element if it is an array."""
    all_legal = legal if isinstance(legal, bool) else legal.all()
    if not all_legal:
        raise BadInput(f"{name} must be {limit}, not {value}.")
