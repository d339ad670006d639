"""Make the serving shares of chips from one half of the published measurements; test on the other.

Groups (one source, one model, one chip) are never split. A handful of numbers for each kind of chip
(those whose calibration files share one table) and for each engine is searched by coordinate
descent on the mean of |log(predicted / measured)|; none belongs to a model or to a row. Prints the
`[serving]` tables of `src/shardwise/estimate/calibration/*.toml`, the engines' numbers for
`estimate/serving/overhead.py`, the errors on both halves, and as the last line one JSON document.
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

from shardwise.errors import ShardwiseError
from shardwise.estimate import calibration
from shardwise.estimate.serving.efficiency import (
    REFERENCE_CHIPS,
    ServingEfficiency,
    serving_efficiency,
)
from shardwise.estimate.serving.overhead import ENGINES, EngineOverhead, engine_overhead
from shardwise.validate.serving.predict import predict_with
from shardwise.validate.serving.runs import ServeRun, load
from shardwise.validate.serving.score import RATES, kind_of

OWN = ("a100", "h100", "h20", "b200", "rtx-4090", "v5p")  # chips with a table
CHIP_GRID = {
    "stream": [0.35, 0.4, 0.5, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95],
    "grouped": [0.2, 0.3, 0.4, 0.5, 0.7, 1.0],
    "kernel_s": [0.0, 1e-6, 2e-6, 3e-6, 4e-6, 5e-6, 6e-6],
    "message_s": [0.0, 2e-6, 4e-6, 6e-6, 8e-6, 12e-6],
    "routed_s": [0.0, 5e-5, 1e-4, 1.5e-4, 2e-4],
    "bf16": [0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9],
    "fp8": [0.4, 0.5, 0.6, 0.7, 0.8],
    "fp4": [0.3, 0.4, 0.5, 0.6, 0.7],
    # Of chips without training runs; the others take theirs, and of their links too.
    "attention": [0.2, 0.3, 0.4, 0.5, 0.6, 0.7],
}
UNTRAINED = ("h20", "rtx-4090")
ENGINE_GRID = {
    "request_s": [0.0, 0.01, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.25],
    "pass_s": [0.0, 2e-4, 5e-4, 1e-3, 2e-3, 3e-3],
    "sequence_s": [0.0, 5e-6, 1e-5, 2e-5, 4e-5],
    "message_s": [0.0, 1e-5, 2e-5, 4e-5],
    "hop_s": [0.0, 2e-6, 4e-6, 6e-6, 1e-5],
    "max_read_bytes_per_s": [6e11, 7e11, 8e11, 9e11, 1e12, 1.2e12, 1.5e12],
}
NCCL = ("FasterTransformer", "gpt-fast")  # engines whose messages are not kernels of their own
SWEEPS = 2
EACH = 8  # rows of a group on one chip that a fit looks at: many rows of one group tell the same
# What a step away from the start on a grid must gain, in errors added up over the rows: a number
# that few rows speak for stays where it was.
STEP = 0.1
CAP = math.log(1.35)  # an error beyond it is a row that the formulas do not describe, not a rate
COVERED = 0.8
START: dict[str, Any] = {
    "matmuls": {"bf16": 0.7, "fp8": 0.6, "fp4": 0.5},
    "attention": 0.5,
    "grouped": 0.4,
    "stream": 0.8,
    "kernel_s": 4e-6,
    "message_s": 8e-6,
    "routed_s": 0.0,
}
START_UNTRAINED = {**START, "network": 0.8}
START_TPU = {**START, "stream": 0.9, "kernel_s": 0.0, "message_s": 0.0, "routed_s": 2e-4}


def start_of(name: str) -> ServingEfficiency:
    """Where the fit of a family starts: what its training runs reached, and usual values."""
    if name in UNTRAINED:
        return ServingEfficiency(name=name, **START_UNTRAINED)
    start = START_TPU if name == "v5p" else START
    start = {k: v for k, v in start.items() if k != "attention"}
    trained = serving_efficiency(name, "tpu" if name == "v5p" else "gpu")
    return dataclasses.replace(trained, **start)


def in_training(group: str) -> bool:
    """Which half a group is in: by its name alone."""
    return int(hashlib.sha256(group.encode()).hexdigest(), 16) % 2 == 0


def family(run: ServeRun) -> str:
    """The chip whose table a run's chip takes."""
    name = run.system.chip.name
    while name not in OWN:
        file = files(calibration) / f"{name}.toml"
        data = tomllib.loads(file.read_text("utf-8")) if file.is_file() else {}
        name = data.get("like", REFERENCE_CHIPS.get(run.system.chip.kind, "h100"))
    return name


def errors(run: ServeRun, shares: ServingEfficiency, engine: EngineOverhead) -> dict[str, float]:
    """metric -> log(predicted / measured) of seconds; memory has no rate to fit."""
    try:
        found = predict_with(run, shares, engine)
    except ShardwiseError:
        return {}
    signs = {m: -1.0 if m in RATES else 1.0 for m in found if m != "memory_bytes"}
    return {m: s * math.log(found[m].expected / run.measured[m]) for m, s in signs.items()}


def changed(shares: ServingEfficiency, name: str, value: float) -> ServingEfficiency:
    if name in START["matmuls"]:
        return dataclasses.replace(shares, matmuls={**shares.matmuls, name: value})
    return dataclasses.replace(shares, **{name: value})


class Fit:
    """The numbers of all families and engines, moved one by one."""

    def __init__(self, runs: list[ServeRun]) -> None:
        self.runs = runs
        self.shares = {f: start_of(f) for f in sorted({family(r) for r in runs})}
        self.engines = {name: _plain(engine) for name, engine in ENGINES.items()}
        self.first = {**self.shares, **self.engines}

    def engine(self, run: ServeRun) -> EngineOverhead:
        name = engine_overhead(run.framework).name
        return self.engines.get(name, engine_overhead(run.framework))

    def score(self, runs: list[ServeRun]) -> float:
        found = [
            min(CAP, abs(e))
            for run in runs
            for e in errors(run, self.shares[family(run)], self.engine(run)).values()
        ]
        return statistics.mean(found) if found else 0.0

    def sweep(self) -> None:
        by_family, by_engine = defaultdict(list), defaultdict(list)
        for run in self.runs:
            by_family[family(run)].append(run)
            by_engine[engine_overhead(run.framework).name].append(run)
        for name, runs in by_family.items():
            for part, grid in CHIP_GRID.items():
                if part == "attention" and name not in UNTRAINED:
                    continue
                if part in ("fp8", "fp4") and not any(r.compute == part for r in runs):
                    continue
                if part == "routed_s" and name != "v5p":
                    continue  # GPUs spend it in kernels, which are counted
                self._best(self.shares, name, runs, part, grid, changed)
            print(name, self.shares[name], round(self.score(runs), 4), flush=True)
        for name, runs in by_engine.items():
            if name not in self.engines:
                continue
            for part, grid in ENGINE_GRID.items():
                if part in ("message_s", "hop_s") and name not in NCCL:
                    continue
                if part == "max_read_bytes_per_s" and not self.engines[name].max_read_bytes_per_s:
                    continue
                if part == "request_s" and not any(r.concurrency for r in runs):
                    continue
                self._best(self.engines, name, runs, part, grid, _with)
            print(self.engines[name], round(self.score(runs), 4), flush=True)

    def _best(
        self,
        table: dict[str, Any],
        name: str,
        runs: list[ServeRun],
        part: str,
        grid: Any,
        set_: Any,
    ) -> None:
        now = table[name]
        at, first = _value(now, part), _value(self.first[name], part)
        best, chosen = self.score(runs) + self._away(grid, first, at, runs), now
        for value in grid:
            table[name] = set_(now, part, value)
            cost = self.score(runs) + self._away(grid, first, value, runs)
            if cost < best:
                best, chosen = cost, table[name]
        table[name] = chosen

    @staticmethod
    def _away(grid: list[float], first: float, value: float, runs: list[ServeRun]) -> float:
        """The price of having left the start."""
        steps = sum(min(first, value) < point <= max(first, value) for point in grid)
        return STEP * steps / len(runs)


def _value(of: ServingEfficiency | EngineOverhead, name: str) -> float:
    if isinstance(of, ServingEfficiency) and name in START["matmuls"]:
        return of.matmuls.get(name, 0.0)
    return float(getattr(of, name) or 0.0)


def _plain(engine: EngineOverhead) -> EngineOverhead:
    """An engine's habits with numbers that do not depend on the fits before."""
    return dataclasses.replace(
        engine, request_s=0.02, pass_s=2e-4, sequence_s=5e-6, message_s=0.0, hop_s=0.0
    )


def _with(engine: EngineOverhead, name: str, value: float) -> EngineOverhead:
    return dataclasses.replace(engine, **{name: value})


def summary(fit: Fit, runs: list[ServeRun]) -> dict[str, dict[str, float]]:
    """kind -> n, median and mean |error| of runs."""
    found: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        for metric, e in errors(run, fit.shares[family(run)], fit.engine(run)).items():
            found[kind_of(run, metric)].append(abs(math.expm1(e)))
    return {
        kind: {"n": len(v), "median": statistics.median(v), "mean": statistics.mean(v)}
        for kind, v in sorted(found.items())
    }


def main() -> None:
    counted = [
        r for r in load() if isinstance(r, ServeRun) and r.quality in "AB" and r.tier == "core"
    ]
    training = [r for r in counted if in_training(r.group)]
    seen: dict[tuple[str, str], int] = defaultdict(int)
    few = []
    for run in sorted(training, key=lambda r: hashlib.sha256(r.id.encode()).hexdigest()):
        here = (run.group, run.system.chip.name)
        seen[here] += 1
        if seen[here] <= EACH:
            few.append(run)
    print(f"{len(counted)} rows, {len(training)} in training groups, {len(few)} looked at")
    fit = Fit(few)
    for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else SWEEPS):
        fit.sweep()
    spreads = {}
    for name in fit.shares:
        errs = sorted(
            abs(e)
            for run in training
            if family(run) == name
            for e in errors(run, fit.shares[name], fit.engine(run)).values()
        )
        at = math.ceil(COVERED * len(errs)) - 1
        spreads[name] = math.expm1(errs[at]) if len(errs) >= 5 else 1.0
    held = [r for r in counted if not in_training(r.group)]
    result = {
        "shares": {
            n: {**dataclasses.asdict(s), "spread": round(spreads[n], 2)}
            for n, s in fit.shares.items()
        },
        "engines": {n: dataclasses.asdict(e) for n, e in fit.engines.items()},
        "training": summary(fit, training),
        "held_back": summary(fit, held),
    }
    for half in ("training", "held_back"):
        for kind, row in result[half].items():
            print(f"{half:10} {kind:11} {row['n']:4}  {row['median']:6.1%}  {row['mean']:6.1%}")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
