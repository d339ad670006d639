"""Fit the numbers of serving engines on one half of the published measurements; test on the other.

Groups (one source, one model, one chip) are never split. The rate of a chip under an engine is the
number of the chip's `[serving]` table times a factor of the engine. The engines' numbers are fitted
at once, shrunk towards those of an unknown engine: few rows move a number little. Errors far out
count little (Huber), and every group counts the same, however many rows it has. The chips' numbers
stay as they were fitted to the same half before: fitting them anew along with the engines' lowered
the errors of the fitted groups, but not of those left out.

Prints the engines' numbers for `estimate/serving/overhead.py`, the errors on both halves when all
engines are unknown, with the present numbers and with the fitted ones, the errors of groups that
the fit left out, the spreads for `estimate/serving/spread.py`, and as the last line one JSON
document.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np

from shardwise.errors import ShardwiseError
from shardwise.estimate.serving.efficiency import serving_efficiency
from shardwise.estimate.serving.overhead import (
    ENGINES,
    UNKNOWN,
    EngineOverhead,
    published_engine,
)
from shardwise.validate.records.scoring import is_calibration_group
from shardwise.validate.serving.kinds import RATES, kind_of
from shardwise.validate.serving.predict import predict_with
from shardwise.validate.serving.runs import ServeRun, load

# Field -> (common value, standard deviation of the logarithm of an engine's number).
PRIOR: dict[str, tuple[float, float]] = {
    "matmuls": (1.0, 0.15),
    "narrow": (1.0, 0.3),
    "gap": (1.0, 0.15),
    "request_s": (UNKNOWN.request_s, 0.8),
    "user_s": (UNKNOWN.user_s, 1.0),
    "hold_passes": (0.2, 1.0),
    "sequence_s": (UNKNOWN.sequence_s, 1.0),
    "message_s": (2e-5, 0.5),
    "hop_s": (2e-6, 0.5),
    "max_read_bytes_per_s": (1.0e12, 0.2),
}
SERVER = ("gap", "request_s", "user_s", "hold_passes", "sequence_s")
FIELDS = {
    "vllm": (*SERVER, "narrow"),
    "sglang": SERVER,
    "trtllm": SERVER,
    "fastertransformer": ("gap", "message_s", "hop_s"),
    "gpt-fast": ("gap",),
    "llama.cpp": ("matmuls", "narrow", "max_read_bytes_per_s"),
}
# Error of a figure that the formulas do not describe: beyond it, Huber's loss is linear.
SCALE = {"decode": 0.12, "ttft": 0.22, "latency": 0.08, "throughput": 0.12}
GROUP_ROWS = 3.0  # a group counts as much as so many independent rows
EACH = 6  # rows of a group on one chip that a fit looks at
STEP = 0.1  # of the logarithm, for derivatives
ITERATIONS = 3
COVERED = 0.8

Engines = Callable[[EngineOverhead], EngineOverhead]


def errors(run: ServeRun, engine: EngineOverhead) -> dict[str, float]:
    """metric -> log(predicted / measured) of seconds; memory has no rate to fit."""
    shares = serving_efficiency(run.system.chip.name, run.system.chip.kind)
    try:
        predicted = predict_with(run, shares, engine)
    except ShardwiseError:
        return {}
    signs = {m: -1.0 if m in RATES else 1.0 for m in predicted if m != "memory_bytes"}
    return {m: s * math.log(predicted[m].expected / run.measured[m]) for m, s in signs.items()}


class Numbers:
    """The fitted numbers as one vector of logarithms, and the rows of the table that they make."""

    def __init__(self) -> None:
        self.names = [(engine, field) for engine, fields in FIELDS.items() for field in fields]
        self.center = np.log([PRIOR[field][0] for _, field in self.names])
        self.sd = np.array([PRIOR[field][1] for _, field in self.names])

    def engine(self, engine: EngineOverhead, x: np.ndarray) -> EngineOverhead:
        """The row of an engine."""
        fields = {
            field: math.exp(value)
            for (name, field), value in zip(self.names, x, strict=True)
            if name == engine.name
        }
        return dataclasses.replace(engine, **fields)


class Fit:
    """Shrunk, robust least squares on the errors of all figures, by Gauss-Newton steps."""

    def __init__(self, runs: list[ServeRun]) -> None:
        self.runs = runs
        self.numbers = Numbers()
        self.x = np.log([getattr(ENGINES[name], field) for name, field in self.numbers.names])
        self.rows: list[tuple[ServeRun, str, str]] = []

    def errors(self, run: ServeRun, x: np.ndarray) -> dict[str, float]:
        return errors(run, self.numbers.engine(published_engine(run.framework), x))

    def measure(self) -> None:
        """Errors of all figures at `x`."""
        self.rows, residuals = [], []
        for run in self.runs:
            for metric, error in self.errors(run, self.x).items():
                self.rows.append((run, metric, kind_of(run, metric)))
                residuals.append(error)
        self.residuals = np.array(residuals)

    def linearize(self) -> None:
        """Derivatives of the errors of all figures by the numbers."""
        gradients = []
        for run in self.runs:
            here = self.errors(run, self.x)
            slopes = {metric: np.zeros(len(self.x)) for metric in here}
            for index, (engine, field) in enumerate(self.numbers.names):
                if engine != published_engine(run.framework).name:
                    continue
                if field in ("request_s", "user_s", "hold_passes") and "ttft_s" not in run.measured:
                    continue
                moved = self.x.copy()
                moved[index] += STEP
                for metric, error in self.errors(run, moved).items():
                    slopes[metric][index] = (error - here[metric]) / STEP
            gradients += [slopes[metric] for metric in here]
        self.gradients = np.array(gradients)

    def weights(self) -> np.ndarray:
        """Weight of every figure: of its group, of its kind, and of how far out it is."""
        count: dict[tuple[str, str], int] = defaultdict(int)
        for run, metric, _ in self.rows:
            count[run.group, metric] += 1
        scale = np.array([SCALE[kind] for _, _, kind in self.rows])
        group = [min(1.0, GROUP_ROWS / count[run.group, metric]) for run, metric, _ in self.rows]
        huber = np.minimum(1.0, scale / np.maximum(np.abs(self.residuals), 1e-9))
        return np.array(group) * huber / scale**2

    def solve(self, keep: np.ndarray) -> np.ndarray:
        """The numbers that fit the figures of `keep` best, from the linearization."""
        weight = self.weights() * keep
        penalty = 1 / self.numbers.sd**2
        normal = (self.gradients.T * weight) @ self.gradients + np.diag(penalty)
        right = (self.gradients.T * weight) @ self.residuals
        right += penalty * (self.x - self.numbers.center)
        return self.x - np.linalg.solve(normal, right)

    def run(self, iterations: int) -> None:
        """Fit the numbers, from the present ones, with derivatives there."""
        self.measure()
        self.linearize()
        for _ in range(iterations):
            step = self.solve(np.ones(len(self.rows))) - self.x
            self.x = self.x + np.clip(step, -0.5, 0.5)
            self.measure()
            print(f"largest step {np.abs(step).max():.3f}", flush=True)

    def left_out(self) -> np.ndarray:
        """Errors of every figure when its group is not fitted, from the linearization."""
        result = self.residuals.copy()
        groups = np.array([run.group for run, _, _ in self.rows])
        for group in set(groups):
            inside = groups == group
            moved = self.solve(~inside) - self.x
            result[inside] += self.gradients[inside] @ moved
        return result


def summary(rows: list[tuple[str, float]]) -> dict[str, dict[str, float]]:
    """kind -> n, median and mean |error| of figures."""
    by_kind: dict[str, list[float]] = defaultdict(list)
    for kind, error in rows:
        by_kind[kind].append(abs(math.expm1(error)))
    return {
        kind: {"n": len(v), "median": statistics.median(v), "mean": statistics.mean(v)}
        for kind, v in sorted(by_kind.items())
    }


def spreads(rows: list[tuple[str, float]]) -> dict[str, float]:
    """kind -> spread, so that a factor of 1 + spread either way holds `COVERED` of the errors."""
    by_kind: dict[str, list[float]] = defaultdict(list)
    for kind, error in rows:
        by_kind[kind].append(abs(error))
    return {
        kind: round(math.expm1(float(np.quantile(errs, COVERED))), 2)
        for kind, errs in sorted(by_kind.items())
    }


def predicted(runs: list[ServeRun], engine_of: Engines) -> list[tuple[str, float]]:
    """(kind, error) of the figures of runs, each for the engine that `engine_of` makes of its."""
    rows = []
    for run in runs:
        engine = engine_of(published_engine(run.framework))
        rows += [(kind_of(run, m), e) for m, e in errors(run, engine).items()]
    return rows


def looked_at(runs: list[ServeRun]) -> list[ServeRun]:
    """At most `EACH` rows of a group on one chip."""
    seen: dict[tuple[str, str], int] = defaultdict(int)
    few = []
    for run in sorted(runs, key=lambda r: hashlib.sha256(r.id.encode()).hexdigest()):
        here = (run.group, run.system.chip.name)
        seen[here] += 1
        if seen[here] <= EACH:
            few.append(run)
    return few


def main() -> None:
    counted = [
        r for r in load() if isinstance(r, ServeRun) and r.quality in "AB" and r.tier == "core"
    ]
    training = [r for r in counted if is_calibration_group(r.group)]
    held = [r for r in counted if not is_calibration_group(r.group)]
    few = looked_at(training)
    print(f"{len(counted)} rows, {len(training)} in training groups, {len(few)} looked at")
    fit = Fit(few)
    fit.run(int(sys.argv[1]) if len(sys.argv) > 1 else ITERATIONS)
    whole = Fit(training)
    whole.x = fit.x
    whole.measure()
    whole.linearize()
    kinds = [kind for _, _, kind in whole.rows]
    left_out = list(zip(kinds, whole.left_out(), strict=True))
    engines: dict[str, Engines] = {
        "unknown": lambda _: UNKNOWN,
        "present": lambda engine: engine,
        "fitted": lambda engine: fit.numbers.engine(engine, fit.x),
    }
    result: dict[str, Any] = {
        "engines": {
            e: {
                f: math.exp(v) for (n, f), v in zip(fit.numbers.names, fit.x, strict=True) if n == e
            }
            for e in FIELDS
        },
        "errors": {
            f"{name}, {half}": summary(predicted(runs, engine_of))
            for name, engine_of in engines.items()
            for half, runs in (("training half", training), ("held back", held))
        },
    }
    result["errors"]["fitted, left out"] = summary(left_out)
    pooled = predicted(training, engines["unknown"])
    result["spreads"] = {"engine": spreads(left_out), "unknown": spreads(pooled)}
    for name, value in zip(fit.numbers.names, fit.x, strict=True):
        print(f"{name[0]:18} {name[1]:22} {math.exp(value):.3g}")
    for name, rows in result["errors"].items():
        for kind, row in rows.items():
            print(f"{name:24} {kind:11} {row['n']:4}  {row['median']:6.1%}  {row['mean']:6.1%}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
