"""Seconds as sums of what an operation does, each at a rate: the fit of a few numbers to many."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

Rows = Sequence[tuple[tuple[float, ...], float]]
Figures = Iterator[tuple[str, tuple[float, str]]]  # name -> (its value, how it was measured)

MAX_RESIDUAL = 0.5  # of a fit to transfers
MIN_SHARE = 0.1  # of the largest transfer's seconds that are for its bytes
NEGLIGIBLE = 1e-6  # share of an operation's seconds; a rate of less is rounding


@dataclass(frozen=True, slots=True)
class Fit:
    """Seconds of an operation = sum of its amounts times `seconds_per`.

    Args:
        seconds_per: of each amount; none is negative.
        n_rows: operations that were measured.
        residual: median relative error of their seconds.
    """

    seconds_per: tuple[float, ...]
    n_rows: int
    residual: float

    @property
    def source(self) -> str:
        """What was fitted, for the provenance of a figure."""
        return f"fitted to {self.n_rows} operations, median residual {self.residual:.0%}"


def fitted(rows: Rows, required: int | None = None) -> Fit:
    """The least squares of relative errors among all fits without a negative number.

    Args:
        rows: (amounts, seconds) of each operation.
        required: index of an amount that takes time, whatever the noise.
    """
    amounts = np.array([row[0] for row in rows])
    seconds = np.array([row[1] for row in rows])
    relative = amounts / seconds[:, None]
    n_amounts = amounts.shape[1]
    best: tuple[float, Any] = (np.inf, None)
    for size in range(1, n_amounts + 1):
        for columns in combinations(range(n_amounts), size):
            chosen = list(columns)
            if required is not None and required not in chosen:
                continue
            shares = relative[:, chosen]
            solved, *_ = np.linalg.lstsq(shares, np.ones(len(rows)), rcond=None)
            if (solved < 0).any():
                continue
            seconds_per = np.zeros(n_amounts)
            seconds_per[chosen] = np.where((shares * solved).max(axis=0) > NEGLIGIBLE, solved, 0)
            error = float(np.square(relative @ seconds_per - 1).sum())
            if error < best[0]:
                best = (error, seconds_per)
    errors = np.abs(relative @ best[1] - 1)
    return Fit(tuple(map(float, best[1])), len(rows), statistics.median(errors.tolist()))


def fitted_transfer(rows: Rows) -> Fit:
    """The fit of transfers to (1, bytes), whose seconds both may be.

    On a busy machine a small transfer may take longer than a large one: the best fit then has bytes
    that take no time, or is far from all rows. The shortest transfer is taken for the start then,
    and the largest one for the bytes.

    Args:
        rows: ((1, bytes), seconds) of each transfer.
    """
    fit = fitted(rows, required=1)
    (_, n_bytes), largest_s = max(rows)
    if fit.residual <= MAX_RESIDUAL and fit.seconds_per[1] * n_bytes >= MIN_SHARE * largest_s:
        return fit
    start_s = min(seconds for _, seconds in rows)
    byte_s = max(largest_s - start_s, MIN_SHARE * largest_s) / n_bytes
    errors = [abs((start_s + byte_s * size) / seconds - 1) for (_, size), seconds in rows]
    return Fit((start_s, byte_s), len(rows), statistics.median(errors))


def rate_and_start(name: str, fit: Fit) -> Figures:
    """The figures of seconds that were fitted to (operations, bytes): bytes/s, and seconds each."""
    start_s, byte_s = fit.seconds_per
    if byte_s:
        yield name, (1 / byte_s, fit.source)
    if start_s:
        yield f"{name}_start", (start_s, fit.source)
