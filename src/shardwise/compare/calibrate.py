"""Own measurements fed back: a chip file by which the next plans expect what a run measured.

The file is a copy of the plan's chip file with `[own]`: by how much steps were longer than
expected, and in how many runs. The rates of a machine that `hw measure` has measured are changed
themselves.
"""

from __future__ import annotations

import hashlib
import re
from math import exp, log
from pathlib import Path

from shardwise.compare.result import MeasuredSteps, StepComparison
from shardwise.errors import BadFile, BadInput, file_error
from shardwise.estimate.calibration import own_factor
from shardwise.estimate.training.measured_rates import is_measured
from shardwise.hardware import Chip
from shardwise.hardware.catalog import catalog_file
from shardwise.hardware.load import load_chip
from shardwise.plan.machine import system_of
from shardwise.plan.schema.training import Plan

OWN = "[own]"
SCALED_TABLES = ("training", "collectives")  # of a measured machine: their rates and times
DIGEST = 12  # characters
RUN = re.compile(rf"\b[0-9a-f]{{{DIGEST}}}\b")
TABLE = re.compile(r"\[(\w+)\]")
TIME_OR_RATE = re.compile(r'value = "([-+.e0-9]+) (us|B/s|FLOP/s)"')


def calibrate(plan: Plan, comparison: StepComparison, path: str, month: str) -> Chip:
    """Write the chip of a plan, corrected by a measured step, and return it.

    A file that has own runs of the chip keeps them: the run is added to them. Steps that are among
    them already are not counted again.

    Args:
        comparison: of the plan with its run or trace.
        month: of the measurement, `YYYY-MM`.

    Raises:
        BadInput: no step was measured.
        BadFile: a file cannot be read or written, or is of another chip.
    """
    if comparison.steps is None:
        raise BadInput("--calibrate needs measured steps: a run of train, or a trace.")
    chip = system_of(plan.hardware).chip
    target = Path(path)
    source = _source(chip)
    earlier = chip
    if target.exists():
        source = target
        earlier = load_chip(target)
        if earlier.name != chip.name:
            raise BadFile(f"{path} is of {earlier.name}, and the plan of {chip.name}.")
    text = _text(source)
    digest = _digest(comparison.steps)
    digests = _digests(text)
    if digest in digests:
        return _written(target, text)
    ratio = comparison.steps.typical_s / plan.estimate.step_s.expected * _factor(chip)
    n_runs = earlier.n_own_runs or 0
    mean = (n_runs * log(earlier.own_step_ratio or 1.0) + log(ratio)) / (n_runs + 1)
    text = text.partition(OWN)[0].rstrip()
    if is_measured(chip):
        text = _scaled(text, own_factor(exp(mean), n_runs + 1) / _factor(earlier))
    measured = f"{comparison.name} on {comparison.hardware}"
    lines = [
        text,
        "",
        OWN,
        f'step = {{ value = "{exp(mean):.6g} x", source = "measured over expected step: '
        f'{measured}", as_of = "{month}" }}',
        f'runs = {{ value = {n_runs + 1}, source = "own runs {" ".join([*digests, digest])}", '
        f'as_of = "{month}" }}',
    ]
    return _written(target, "\n".join(lines) + "\n")


def _written(target: Path, text: str) -> Chip:
    """The chip of a file that is written."""
    try:
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise file_error(str(target), error) from None
    return load_chip(target)


def _digests(text: str) -> list[str]:
    """The names of the own runs of a chip's file."""
    lines = text.partition(OWN)[2].splitlines()
    return [name for line in lines if line.startswith("runs = ") for name in RUN.findall(line)]


def _digest(steps: MeasuredSteps) -> str:
    """A name for measured steps, by which they are known again."""
    return hashlib.sha256(repr(steps).encode()).hexdigest()[:DIGEST]


def _factor(chip: Chip) -> float:
    """By what own runs have changed the expected times of a chip."""
    if chip.own_step_ratio is None:
        return 1.0
    return own_factor(chip.own_step_ratio, chip.n_own_runs or 1)


def _source(chip: Chip) -> Path:
    """The file of a chip: the user's, or that of the catalog."""
    if chip.path:
        return Path(chip.path)
    return catalog_file(chip.name)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise file_error(path, error) from None


def _scaled(text: str, factor: float) -> str:
    """The file of a measured machine whose work takes `factor` times as long."""
    lines = []
    table = ""
    for line in text.splitlines():
        match = TABLE.fullmatch(line.strip())
        if match:
            table = match[1]
        if table in SCALED_TABLES:
            line = TIME_OR_RATE.sub(lambda value: _scaled_value(value, factor), line)
        lines.append(line)
    return "\n".join(lines)


def _scaled_value(value: re.Match[str], factor: float) -> str:
    number = float(value[1])
    number = number * factor if value[2] == "us" else number / factor
    return f'value = "{number:.6g} {value[2]}"'
