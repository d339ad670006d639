"""Fit the rates of training to all published runs; test the fit on groups that it leaves out.

Writes `src/shardwise/estimate/calibration/training.toml`, the predictions of each run without its
group into `src/shardwise/validate/data/left_out.json`, and the layouts of the runs into
`src/shardwise/search/training/practice.toml`. Prints the errors: of the fit, of one
half of the groups predicted from the other half, and of each group, framework, chip and
architecture predicted from all others. The last line is one JSON document.

    python bench/calibrate.py          # print only
    python bench/calibrate.py --write
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from hierarchy import LEVELS, POWER, PRIORS, RATES, Fit, Hierarchy, Row

from shardwise.errors import ShardwiseError
from shardwise.estimate.calibration import architecture_of, power_ratio, training_fit
from shardwise.formulas.flops import mfu
from shardwise.models import count
from shardwise.search.training.practice import ROLES, SIZED_ROLES, PublishedLayout
from shardwise.validate import Run, load
from shardwise.validate.records.scoring import is_calibration_group
from shardwise.validate.training.predict import layout_step_of
from shardwise.validate.training.software import framework_of, fusion_of
from shardwise.vocabulary import UNKNOWN_FRAMEWORK

PACKAGE = Path(__file__).parent.parent / "src/shardwise"
COVERED = 0.8  # share of rows that an interval is to hold
LAYOUT = "layout"  # label of the test that leaves out all runs sharded alike
SMALLEST = 0.005  # effects below this are left out of the file
MIN_GROUPS = 2  # of an architecture, chip or framework, for effects of its own in the file


def gather() -> list[Row]:
    """Rows of core quality that the formulas support."""
    rows = []
    for run in core_runs():
        if run.quality == "C":
            continue
        try:
            step = layout_step_of(run)
            step.time(fusion=fusion_of(run))
        except ShardwiseError:
            continue
        chip = run.system.chip
        framework = framework_of(run)
        members = {
            "architecture": architecture_of(chip.name),
            "chip": chip.name,
            "framework": "" if framework == UNKNOWN_FRAMEWORK else framework,
        }
        log_power = math.log(power_ratio(chip))
        row = Row(run.id, run.group, step, fusion_of(run), members, log_power, run.measured_step_s)
        rows.append(row)
    return rows


def published_layouts(runs: Iterable[Run]) -> list[PublishedLayout]:
    """Layouts of published runs, with the sizes of the machines that they ran on."""
    runs_by_layout: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        sizes = run.layout.sizes
        shards = (sizes[role] for role in SIZED_ROLES)
        kinds = (run.system.chip.kind, run.config.is_moe, sizes["fsdp"] > 1)
        key = (*kinds, *shards, run.layout.schedule)
        runs_by_layout.setdefault(key, []).append(run)
    layouts = []
    for key, same in sorted(runs_by_layout.items()):
        n_chips = [run.system.n_chips for run in same]
        seq = min(run.job.seq for run in same)
        layouts.append(PublishedLayout(*key, min(n_chips), max(n_chips), seq))
    return layouts


def best_mfu(runs: Iterable[Run]) -> dict[tuple[str, str], float]:
    """(chip, dtype of matmuls) -> highest MFU of published runs that train all weights."""
    best: dict[tuple[str, str], float] = {}
    for run in runs:
        chip, dtype = run.system.chip, run.job.compute
        if run.packed or run.task == "lora" or dtype not in chip.peak_flops_per_s:
            continue
        flops = count.model_flops_per_token(run.config, run.job.seq) * run.job.tokens_per_step
        reached = mfu(flops, run.measured_step_s, run.system.n_chips, chip.peak(dtype))
        best[chip.name, dtype] = max(best.get((chip.name, dtype), 0.0), float(reached))
    return best


def practice_document(
    layouts: Iterable[PublishedLayout], best: Mapping[tuple[str, str], float]
) -> str:
    """Text of `practice.toml`."""
    return "\n".join(
        [
            "# Layouts of published training runs, from their records by bench/calibrate.py.",
            f"# {', '.join(PublishedLayout._fields)}",
            "layouts = [",
            *(f"  {json.dumps(layout)}," for layout in layouts),
            "]",
            "[mfu]  # the highest of published runs",
            *(f"{chip}.{dtype} = {value:.3f}" for (chip, dtype), value in sorted(best.items())),
            "",
        ]
    )


def layout_label(row: Row) -> str:
    """The roles of the mesh that a run shards."""
    config, sizes = row.step.config, row.step.layout.sizes
    return " ".join([str(config.is_moe), *(role for role in ROLES if sizes[role] > 1)])


def core_runs() -> Iterator[Run]:
    """Published runs of the core of the data."""
    for run in load():
        if isinstance(run, Run) and run.tier == "core":
            yield run


def summary(hierarchy: Hierarchy, predicted: Any, rows: Any) -> dict[str, float]:
    """Statistics of the errors, predicted / measured - 1, of some rows."""
    errors = np.expm1(predicted - hierarchy.measured)[rows]
    return {
        "n": int(rows.sum()),
        "median": float(np.median(np.abs(errors))),
        "mean": float(np.abs(errors).mean()),
        "p90": float(np.quantile(np.abs(errors), 0.9)),
        "bias": float(np.median(errors)),
    }


def tests(hierarchy: Hierarchy, fit: Fit) -> tuple[dict[str, Any], dict[str, Any]]:
    """Name of a test -> statistics of its errors, and the predictions of its left-out rows."""
    rows = hierarchy.rows
    everything = np.ones(len(rows), bool)
    first = np.array([is_calibration_group(row.group) for row in rows])
    predictions = {"fit": fit.predicted, "group": hierarchy.left_out(fit, [r.group for r in rows])}
    labels = [layout_label(row) for row in rows]
    predictions[LAYOUT] = hierarchy.left_out(fit, labels)
    for level in LEVELS:
        predictions[level] = hierarchy.left_out(fit, [r.members[level] for r in rows])
    statistics_by_test = {
        name: summary(hierarchy, predicted, everything) for name, predicted in predictions.items()
    }
    halves = np.zeros(len(rows))
    for half in (first, ~first):
        halves[~half] = hierarchy.fit(half).predicted[~half]
    statistics_by_test["other half"] = summary(hierarchy, halves, everything)
    return statistics_by_test, predictions


def spreads(hierarchy: Hierarchy, predictions: dict[str, Any]) -> dict[str, float]:
    """What is left out -> the factor less 1 that holds 80 % of the errors.

    Without a framework, a chip, an architecture, or all layouts that shard the same roles: by how
    much wider than without a group alone.
    """
    logs = {}
    for name in ("group", LAYOUT, *LEVELS):
        errors = np.abs(predictions[name] - hierarchy.measured)
        logs[name] = float(np.quantile(errors, COVERED))
    spread = {"group": math.expm1(logs["group"])}
    for level in (*LEVELS, LAYOUT):
        wider = max(logs[level] ** 2 - logs["group"] ** 2, 0.0)
        spread[level] = math.expm1(math.sqrt(wider))
    return {name: round(value, 3) for name, value in spread.items()}


def document_of(hierarchy: Hierarchy, fit: Fit, spread: dict[str, float]) -> str:
    """Text of `training.toml`."""
    present = training_fit()
    deviations = hierarchy.standard_deviations(fit)
    month = datetime.date.today().strftime("%Y-%m")
    lines = [
        "# Rates of training steps, fitted together to all published runs by bench/calibrate.py.",
        "# Rate -> [value of all chips, or factor on it; standard deviation of its logarithm].",
        f'as_of = "{month}"',
        'source = "all published runs (python bench/calibrate.py)"',
        "",
        "[spread] # 80 % of the errors of runs are below, if what is named was left out of the fit",
        *(f"{name} = {value}" for name, value in spread.items()),
        "",
        "[chips] # by architecture",
    ]
    lines += [f"{name} = {json.dumps(chips)}" for name, chips in present["chips"].items()]
    exponent = float(fit.effects[hierarchy.position[POWER, "", POWER]])
    least, most = (
        math.exp(extreme(row.log_power for row in hierarchy.rows)) for extreme in (min, max)
    )
    lines += [
        "",
        "[power] # share of matmuls ~ (watts per peak FLOP/s) ^ exponent, relative to an H100",
        f"watts_per_flop_s = {present['power']['watts_per_flop_s']}",
        f"exponent = {exponent:.3f}",
        f"range = [{least:.3f}, {most:.3f}]",
    ]
    section = ""
    for column, effect, sd in zip(hierarchy.columns, fit.effects, deviations, strict=True):
        level, member, rate = column
        if level == POWER or (level != "all" and abs(effect) < SMALLEST):
            continue
        if level != "all" and n_groups(hierarchy, level, member) < MIN_GROUPS:
            continue
        name = f"{level}.{member}" if member else level
        if name != section:
            lines += ["", f"[{name}]"]
            section = name
        value = math.exp(effect) * (PRIORS[rate][0] if level == "all" else 1.0)
        lines.append(f"{rate} = [{value:.4g}, {sd:.2g}]")
    return "\n".join(lines) + "\n"


def n_groups(hierarchy: Hierarchy, level: str, member: str) -> int:
    """Number of groups of a member of a level."""
    return len({row.group for row in hierarchy.rows if row.members[level] == member})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the files")
    arguments = parser.parse_args()
    hierarchy = Hierarchy(gather())
    fit = hierarchy.fit(np.ones(len(hierarchy.rows), bool))
    statistics_by_test, predictions = tests(hierarchy, fit)
    spread = spreads(hierarchy, predictions)
    for name, values in statistics_by_test.items():
        print(f"{name:13}", *(f"{key} {value:.4g}" for key, value in values.items()))
    n_identified = int((hierarchy.standard_deviations(fit) < hierarchy.prior_sd / 2).sum())
    n_effects = len(hierarchy.columns)
    print(f"{n_effects} effects, {n_identified} with less than half of their prior's deviation")
    if arguments.write:
        file = PACKAGE / "estimate/calibration/training.toml"
        file.write_text(document_of(hierarchy, fit, spread), encoding="utf-8")
        ratios = np.exp(predictions["group"] - hierarchy.measured)
        file = PACKAGE / "search/training/practice.toml"
        runs = [*core_runs()]
        document = practice_document(published_layouts(runs), best_mfu(runs))
        file.write_text(document, encoding="utf-8")
        pairs = zip(hierarchy.rows, ratios, strict=True)
        left_out = {row.id: round(float(ratio), 4) for row, ratio in pairs}
        text = json.dumps(left_out, indent=0)
        (PACKAGE / "validate/data/left_out.json").write_text(text + "\n", encoding="utf-8")
    total = {"tests": statistics_by_test, "spread": spread, "rates": len(RATES)}
    total |= {"effects": n_effects, "identified": n_identified}
    print(json.dumps(total))
    return 0


if __name__ == "__main__":
    sys.exit(main())
