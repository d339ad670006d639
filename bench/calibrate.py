"""Make the calibration of each chip from one half of the published runs; test it on the other.

Groups (one source, one model, one chip) are never split. A handful of shares per chip is searched
by coordinate descent on the mean absolute error; none of them belongs to a model or to a row.
Prints the values for `src/shardwise/estimate/calibration/*.toml`, the errors on both halves, and
as the last line one JSON document.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import statistics
import sys
from collections import Counter, defaultdict
from typing import Any

import numpy as np

from shardwise.errors import ShardwiseError
from shardwise.estimate.calibration import PEAK, Calibration, calibration
from shardwise.estimate.training.layout_step import LayoutStep
from shardwise.validate import Run, load
from shardwise.validate.training.predict import fusion_of, layout_step_of

GRID = {
    "bf16": [n / 40 for n in range(18, 37)],
    "fp8": [n / 40 for n in range(14, 31)],
    "fp4": [n / 40 for n in range(10, 27)],
    "attention": [n / 20 for n in range(6, 16)],  # 0.75: the best published, FlashAttention-3
    "scan": [0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.45],
    "grouped": [0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1.0],
    "expert_s": [0.0, 5e-6, 1e-5, 1.5e-5, 2e-5, 2.5e-5, 3e-5, 4e-5],
    "contention": [0.0, 0.1, 0.2, 0.25],  # NCCL runs on 32 of an H100's 132 SMs at most
    "links": [0.5, 0.6, 0.7, 0.8, 0.9],
    "network": [0.5, 0.6, 0.7, 0.8, 0.9],
    "hbm": [0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9],
    "collective_s": [0.0, 1e-5, 2e-5, 4e-5],
}
SWEEPS = 3
COVERED = 0.8  # share of rows that an interval is to hold
CAP = 0.6  # an error beyond it is a row that the formulas do not describe, not a rate

# Where every fit starts, so that it does not depend on the values before it.
START = Calibration(
    matmuls={"bf16": 0.7, "fp8": 0.6, "fp4": 0.5},
    attention=0.5,
    grouped=0.6,
    hbm=0.8,
    links=0.8,
    network=0.8,
    contention=0.1,
)

Rows = list[tuple[Run, LayoutStep]]


def in_training(group: str) -> bool:
    """Which half a group is in: by its name alone."""
    return int(hashlib.sha256(group.encode()).hexdigest(), 16) % 2 == 0


def errors(rows: Rows, cal: Calibration) -> list[Any]:
    """predicted / measured - 1 of every row: numbers, or arrays where `cal` has an array."""
    return [one.time(cal, fusion_of(run)).step_s / run.measured_step_s - 1 for run, one in rows]


def changed(cal: Calibration, name: str, value: Any) -> Calibration:
    if name in START.matmuls:
        return dataclasses.replace(cal, matmuls={**cal.matmuls, name: value})
    return dataclasses.replace(cal, **{name: value})


def start_of(chip: str, rows: Rows) -> Calibration:
    """`START` for the dtypes of a chip."""
    known = {dtype for run, _ in rows for dtype in run.system.chip.peak_flops_per_s}
    matmuls = {d: share for d, share in START.matmuls.items() if d in known}
    return dataclasses.replace(START, matmuls=matmuls, kernel_s=calibration(chip).kernel_s)


def fitted(rows: Rows, start: Calibration) -> Calibration:
    """Coordinate descent over `GRID`, all values of a coordinate at once."""
    counts = Counter(run.group for run, _ in rows)
    weights = np.array([counts[run.group] ** -0.5 for run, _ in rows])

    def losses(cal: Calibration, n: int) -> Any:
        found = [np.broadcast_to(np.minimum(np.abs(e), CAP), n) for e in errors(rows, cal)]
        return weights @ np.array(found) / weights.sum()

    best, cal = losses(start, 1)[0], start
    left_out = {*START.matmuls} - {*cal.matmuls}
    if rows[0][0].system.chip.kind != "gpu":  # a TPU runs one kernel for all experts
        left_out |= {"expert_s"}
    if not any(run.config.mambas for run, _ in rows):
        left_out |= {"scan"}
    for _ in range(SWEEPS):
        for name, values in GRID.items():
            if name in left_out:
                continue
            found = losses(changed(cal, name, np.array(values)), len(values))
            i = int(np.argmin(found))
            if found[i] < best - 1e-4:
                best, cal = found[i], changed(cal, name, values[i])
    return cal


def spread(rows: Rows, start: Calibration) -> float:
    """80th percentile of |log(predicted / measured)| as a factor less 1, of rows left out.

    The groups are cut in two, again by name; each part is predicted with the values of the other.
    """
    parts = [[row for row in rows if folded(row[0].group) == fold] for fold in (0, 1)]
    logs: list[float] = []
    for part, other in (parts, parts[::-1]):
        cal = fitted(other, start) if other else start
        logs += [abs(math.log1p(e)) for e in errors(part, cal)]
    return math.expm1(sorted(logs)[int(COVERED * len(logs))])


def folded(group: str) -> int:
    """Which part of its half a group is in."""
    return int(hashlib.sha256(group.encode()).hexdigest(), 16) // 2 % 2


def gather() -> dict[str, Rows]:
    """Rows by the chip whose calibration they use."""
    found: dict[str, Rows] = defaultdict(list)
    for run in load():
        if not isinstance(run, Run):
            continue
        cal = calibration(run.system.chip.name)
        if run.tier != "core" or run.quality == "C" or cal is PEAK:
            continue
        try:
            one = layout_step_of(run)
            one.time(cal, fusion_of(run))
        except ShardwiseError:
            continue
        found[cal.name].append((run, one))
    return found


def main() -> int:
    document = {}
    for chip, rows in gather().items():
        training = [row for row in rows if in_training(row[0].group)]
        held_back = [row for row in rows if not in_training(row[0].group)]
        if not training:
            continue
        start = start_of(chip, rows)
        cal = fitted(training, start)
        cal = dataclasses.replace(cal, spread=round(spread(training, start), 2))
        told = {"training": training, "held_back": held_back, "as_committed": held_back}
        medians = {}
        for name, half in told.items():
            used = calibration(chip) if name == "as_committed" else cal
            found = [abs(e) for e in errors(half, used)]
            medians[name] = statistics.median(found) if found else None
        values = {
            k: v for k, v in dataclasses.asdict(cal).items() if k in (*GRID, "matmuls", "spread")
        }
        document[chip] = {"n": [len(training), len(held_back)], "median": medians, **values}
        print(f"{chip:5} {len(training)} + {len(held_back)} runs  {medians}  {values}")
    print(json.dumps(document))
    return 0


if __name__ == "__main__":
    sys.exit(main())
