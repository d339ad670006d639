"""Fit the rates of serving on one half of the published measurements; test on the other.

Groups (one source, one model, one chip) are never split. The rate of a chip under an engine is the
product of a number of the chip (families whose calibration files share one table) and a factor of
the engine; all are fitted at once, shrunk towards common values: few rows move a number little.
Errors far out count little (Huber), and every group counts the same, however many rows it has.

Prints the `[serving]` tables of `src/shardwise/estimate/calibration/*.toml`, the engines' numbers
for `estimate/serving/overhead.py`, the errors on both halves with the present numbers and with the
fitted ones, the errors of groups that the fit left out, the spreads for intervals, and as the last
line one JSON document.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import statistics
import sys
import tomllib
from collections import defaultdict
from importlib.resources import files
from typing import Any

import numpy as np

from shardwise.errors import ShardwiseError
from shardwise.estimate import calibration
from shardwise.estimate.serving.efficiency import (
    REFERENCE_CHIPS,
    ServingEfficiency,
    serving_efficiency,
)
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

CHIPS = ("a100", "h100", "h20", "b200", "rtx-4090", "v5p")  # chips with a table
FIXED = ("v5p",)  # TPUs: two published sources, whose numbers stay as they are
DTYPES = ("bf16", "fp8", "fp4")
# Field -> (common value, standard deviation of the logarithm of a chip's number).
CHIP_PRIOR: dict[str, tuple[float, float]] = {
    "bf16": (0.7, 0.2),
    "fp8": (0.6, 0.2),
    "fp4": (0.45, 0.2),
    "attention": (0.5, 0.2),  # of chips without training runs; the others take theirs
    "grouped": (0.4, 0.3),
    "stream": (0.8, 0.1),
    "kernel_s": (4e-6, 0.3),
    "message_s": (8e-6, 0.3),
}
UNTRAINED = ("h20", "rtx-4090")
ENGINE_PRIOR: dict[str, tuple[float, float]] = {
    "matmuls": (1.0, 0.2),
    "grouped": (1.0, 0.2),
    "stream": (1.0, 0.1),
    "gap": (1.0, 0.3),
    "request_s": (0.04, 0.8),
    "hold_passes": (0.7, 0.7),
    "message_s": (2e-5, 0.5),
    "hop_s": (2e-6, 0.5),
    "max_read_bytes_per_s": (1.0e12, 0.3),
}
FITTED_ENGINES = ("vllm", "sglang", "trtllm", "fastertransformer", "gpt-fast", "llama.cpp")
SERVERS = ("vllm", "sglang", "trtllm")  # engines with measured first tokens under traffic
NCCL = ("fastertransformer", "gpt-fast")  # engines whose messages are not kernels of their own
MOST = {"stream": 0.95, "bf16": 0.95, "fp8": 0.95, "fp4": 0.95, "grouped": 1.0}
# Error of a figure that the formulas do not describe: beyond it, Huber's loss is linear.
SCALE = {"decode": 0.12, "ttft": 0.22, "latency": 0.08, "throughput": 0.12}
GROUP_ROWS = 3.0  # a group counts as much as so many independent rows
EACH = 6  # rows of a group on one chip that a fit looks at
STEP = 0.1  # of the logarithm, for derivatives
ITERATIONS = 4
RELINEARIZED = (0, 2)  # iterations with new derivatives; the others take those of the one before
# Number of a chip -> the factor of an engine that it is multiplied by; `matmuls` for all dtypes.
FACTORS = {"grouped": "grouped", "stream": "stream", "kernel_s": "gap"}
COVERED = 0.8

Name = tuple[str, str]  # chip or engine, field


def family(run: ServeRun) -> str:
    """The chip whose table a run's chip takes."""
    name = run.system.chip.name
    while name not in CHIPS:
        file = files(calibration) / f"{name}.toml"
        data = tomllib.loads(file.read_text("utf-8")) if file.is_file() else {}
        name = data.get("like", REFERENCE_CHIPS.get(run.system.chip.kind, "h100"))
    return name


def errors(run: ServeRun, shares: ServingEfficiency, engine: EngineOverhead) -> dict[str, float]:
    """metric -> log(predicted / measured) of seconds; memory has no rate to fit."""
    try:
        predicted = predict_with(run, shares, engine)
    except ShardwiseError:
        return {}
    signs = {m: -1.0 if m in RATES else 1.0 for m in predicted if m != "memory_bytes"}
    return {m: s * math.log(predicted[m].expected / run.measured[m]) for m, s in signs.items()}


class Numbers:
    """The fitted numbers as one vector of logarithms, and the tables that they make."""

    def __init__(self, runs: list[ServeRun]) -> None:
        self.prior: dict[Name, tuple[float, float]] = {}
        for chip in sorted({family(run) for run in runs} - set(FIXED)):
            of_chip = [run for run in runs if family(run) == chip]
            for field, prior in CHIP_PRIOR.items():
                if field == "attention" and chip not in UNTRAINED:
                    continue
                if field in ("fp8", "fp4") and not any(r.compute == field for r in of_chip):
                    continue
                self.prior[chip, field] = prior
        for engine in FITTED_ENGINES:
            for field, prior in ENGINE_PRIOR.items():
                if field in ("message_s", "hop_s") and engine not in NCCL:
                    continue
                if field in ("request_s", "hold_passes") and engine not in SERVERS:
                    continue
                if field == "max_read_bytes_per_s" and engine != "llama.cpp":
                    continue
                self.prior[engine, field] = prior
        self.names = list(self.prior)
        self.center = np.log([self.prior[name][0] for name in self.names])
        self.sd = np.array([self.prior[name][1] for name in self.names])

    def value(self, name: Name, x: np.ndarray) -> float:
        value = math.exp(x[self.names.index(name)])
        return min(value, MOST.get(name[1], math.inf)) if name[0] in CHIPS else value

    def shares(self, chip: str, x: np.ndarray) -> ServingEfficiency:
        """The table of a chip."""
        kind = "tpu" if chip == "v5p" else "gpu"
        trained = serving_efficiency(chip, kind)
        if chip in FIXED:
            return trained
        fields = {f: self.value((c, f), x) for c, f in self.names if c == chip}
        matmuls = {dtype: fields.pop(dtype) for dtype in DTYPES if dtype in fields}
        return dataclasses.replace(trained, matmuls=matmuls, **fields)

    def engine(self, name: str, x: np.ndarray) -> EngineOverhead:
        """The row of an engine."""
        fields = {f: self.value((e, f), x) for e, f in self.names if e == name}
        return dataclasses.replace(ENGINES[name], **fields)


class Fit:
    """Shrunk, robust least squares on the errors of all figures, by Gauss-Newton steps."""

    def __init__(self, runs: list[ServeRun]) -> None:
        self.runs = runs
        self.numbers = Numbers(runs)
        self.x = self.numbers.center.copy()
        self.rows: list[tuple[ServeRun, str, str]] = []

    def errors(self, run: ServeRun, x: np.ndarray) -> dict[str, float]:
        shares = self.numbers.shares(family(run), x)
        return errors(run, shares, self.numbers.engine(published_engine(run.framework).name, x))

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
            for owners in self.moves(run).values():
                moved = self.x.copy()
                moved[self.numbers.names.index(owners[0])] += STEP
                for metric, error in self.errors(run, moved).items():
                    for owner in owners:
                        index = self.numbers.names.index(owner)
                        slopes[metric][index] += (error - here[metric]) / STEP
            gradients += [slopes[metric] for metric in here]
        self.gradients = np.array(gradients)

    def moves(self, run: ServeRun) -> dict[str, list[Name]]:
        """Fields whose derivatives a run needs -> the numbers that have this derivative.

        An engine's factor of a rate has the derivative of the chip's number, or their sum.
        """
        chip, engine = family(run), published_engine(run.framework).name
        names = self.numbers.names
        fields: dict[str, list[Name]] = {}
        for owner, field in names:
            if owner == chip:
                if field in DTYPES and field not in (run.compute, "bf16"):
                    continue
                if field == "grouped" and not run.config.is_moe:
                    continue
                if field == "message_s" and run.system.n_chips == 1:
                    continue
                factor = "matmuls" if field in DTYPES else FACTORS.get(field, "")
                fields[field] = [(chip, field)]
                if (engine, factor) in names:
                    fields[field].append((engine, factor))
            elif owner == engine and field not in ("matmuls", *FACTORS.values()):
                if field in ("request_s", "hold_passes") and "ttft_s" not in run.measured:
                    continue
                fields[f"{engine} {field}"] = [(engine, field)]
        return fields

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
        """Fit the numbers; ends with a linearization at them."""
        self.measure()
        for iteration in range(iterations):
            if iteration in RELINEARIZED:
                self.linearize()
            step = self.solve(np.ones(len(self.rows))) - self.x
            self.x = self.x + np.clip(step, -0.5, 0.5)
            self.measure()
            print(f"largest step {np.abs(step).max():.3f}", flush=True)
        self.linearize()

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


def predicted(fit: Fit | None, runs: list[ServeRun], pooled: bool = False) -> list[Any]:
    """(kind, error) of runs; without a fit at the present numbers, or all of unknown engines."""
    rows = []
    for run in runs:
        engine = published_engine(run.framework)
        shares = serving_efficiency(run.system.chip.name, run.system.chip.kind)
        if fit is not None:
            shares = fit.numbers.shares(family(run), fit.x)
            engine = fit.numbers.engine(engine.name, fit.x)
        if pooled:
            request_s, hold_passes = (ENGINE_PRIOR[f][0] for f in ("request_s", "hold_passes"))
            engine = dataclasses.replace(UNKNOWN, request_s=request_s, hold_passes=hold_passes)
        rows += [(kind_of(run, m), e) for m, e in errors(run, shares, engine).items()]
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
    few = looked_at([run for run in training if family(run) not in FIXED])
    print(f"{len(counted)} rows, {len(training)} in training groups, {len(few)} looked at")
    fit = Fit(few)
    fit.run(int(sys.argv[1]) if len(sys.argv) > 1 else ITERATIONS)
    kinds = [kind for _, _, kind in fit.rows]
    left_out = list(zip(kinds, fit.left_out(), strict=True))
    pooled = predicted(fit, few, pooled=True)
    result = {
        "chips": {c: dataclasses.asdict(fit.numbers.shares(c, fit.x)) for c in CHIPS},
        "engines": {e: dataclasses.asdict(fit.numbers.engine(e, fit.x)) for e in FITTED_ENGINES},
        "before": {
            "training": summary(predicted(None, training)),
            "held_back": summary(predicted(None, held)),
        },
        "after": {
            "training": summary(predicted(fit, training)),
            "left_out": summary(left_out),
            "held_back": summary(predicted(fit, held)),
            "held_back, engine unknown": summary(predicted(fit, held, pooled=True)),
        },
        "spreads": {"engine": spreads(left_out), "unknown": spreads(pooled)},
    }
    for name, x in zip(fit.numbers.names, fit.x, strict=True):
        print(f"{name[0]:18} {name[1]:22} {math.exp(x):.3g}")
    for time, halves in (("before", result["before"]), ("after", result["after"])):
        for half, rows in halves.items():
            for kind, row in rows.items():
                print(
                    f"{time:6} {half:26} {kind:11} {row['n']:4}"
                    f"  {row['median']:6.1%}  {row['mean']:6.1%}"
                )
    print(json.dumps(result))


if __name__ == "__main__":
    main()
