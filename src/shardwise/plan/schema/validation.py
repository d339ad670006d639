"""Checks that training and serving plans share: numbers in range, facts stated twice that agree.

A plan.json may have been edited. What is derived from it later, an explanation or a compiled
program, would silently be wrong if, say, its mesh had more chips than its machine.
`training.validate` and `serving.validate` check a plan as a whole.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from shardwise.errors import BadFile, nearest, raise_all
from shardwise.hardware import parse_system
from shardwise.hardware.catalog import catalog_chip, chip_names
from shardwise.hardware.figure import DTYPES, FIELDS, unit_of
from shardwise.models import ModelConfig
from shardwise.models.checks import short
from shardwise.plan.machine import errors_at, figures_of, planned_hardware
from shardwise.plan.schema.architecture import planned_model
from shardwise.plan.schema.common import MemoryBytes, PlanDocument, PlannedHardware, Range

DEEPEST = 32  # levels of a document; a plan has 10
LARGEST = 1e27  # no number of a plan comes near
SIGNED = ("amount", "ttft_off", "tpot_off")  # keys of the numbers that may be below 0
SHARES = ("mfu", "bubble_fraction", "writing", "redone", "restarting", "within")
# 2 P T counts the unembedding for each token of a prompt, and only the last one needs it: a small
# model with a large vocabulary may be above 1.
LARGER_SHARES = ("$.estimate.prefill.mfu",)
TOLERANCE = 1e-6  # relative, for sums and products that were rounded in another order
TOO_DEEP = f"nested more than {DEEPEST} levels deep, which no plan is"
MEMORY_PARTS = ("weights", "gradients", "optimizer", "activations", "kv_cache", "other")


Figures = Mapping[str, float]


class Fact(NamedTuple):
    """A value of a plan that follows from others.

    Args:
        path: its keys, as `$.hardware.n_chips`.
        source: what it follows from, in words.
    """

    path: str
    stated: Any
    source: str
    derived: Any


def number_problems(document: Any) -> list[str]:
    """Problems of a JSON document that is nested too deep, or has a number out of range."""
    problems = []
    values: list[tuple[str, Any, Any, int]] = [("$", "", document, 0)]
    while values:
        path, key, value, depth = values.pop()
        if depth > DEEPEST:
            return [f"{TOO_DEEP}."]
        if isinstance(value, dict):
            values += [(f"{path}.{k}", k, inner, depth + 1) for k, inner in value.items()]
        elif isinstance(value, list):
            values += [(f"{path}[{i}]", key, inner, depth + 1) for i, inner in enumerate(value)]
        elif isinstance(value, int | float) and abs(value) >= LARGEST:
            problems.append(f"{path} is {shown(value)}; no number of a plan reaches {LARGEST:g}.")
        elif _is_share(path, key) and isinstance(value, int | float) and value > 1 + TOLERANCE:
            problems.append(f"{path} is {shown(value)}; a share is at most 1.")
        elif isinstance(value, int | float) and value < 0 and key not in SIGNED:
            problems.append(f"{path} is {shown(value)}; it cannot be below 0.")
    return problems[::-1]


def _is_share(path: str, key: str) -> bool:
    """Whether a number of a plan is at most 1."""
    return key in SHARES and path not in LARGER_SHARES


def disagreements(facts: Iterable[Fact]) -> Iterator[str]:
    """Yield a problem for each fact whose value is not the one that follows from the others."""
    for fact in facts:
        if not _agree(fact.stated, fact.derived):
            yield f"{fact.path} is {shown(fact.stated)}; {fact.source} is {shown(fact.derived)}."


def check_keys(path: str, stated: Iterable[str], keys: tuple[str, ...]) -> None:
    """Raise BadFile unless an object has exactly these keys."""
    problems = [f"{path} lacks the key {key}." for key in keys if key not in stated]
    problems += [f"unknown key {path}.{k}. {nearest(k, keys)}" for k in stated if k not in keys]
    raise_all(BadFile, problems)


def hardware_problems(hardware: PlannedHardware) -> list[str]:
    """Problems of a machine whose name, sizes and figures do not belong together.

    Raises:
        BadFile: no machine has the name.
    """
    with errors_at("$.hardware.name"):
        named = planned_hardware(parse_system(hardware.name))
    problems = []
    for key in ("name", "chip", "slices", "n_chips"):
        stated = getattr(hardware, key)
        if stated != getattr(named, key):
            problems.append(
                f"$.hardware.{key} is {shown(stated)}; that of $.hardware.name "
                f"{shown(hardware.name)} is {shown(getattr(named, key))}."
            )
    return [
        *problems,
        *_figure_problems(hardware.figures),
        *_structure_problems(hardware.figures, named.figures),
        *_other_chip(hardware, named.figures),
    ]


def _structure_problems(figures: Figures, named: Figures) -> Iterator[str]:
    """Yield the problems of figures on which the shape of the machine depends."""
    for name in ("ici.axes", "node.gpus"):
        if figures.get(name) != named.get(name):
            path = f"$.hardware.figures.{name}"
            yield f"{path} is {shown(figures.get(name))}; the machine has {shown(named.get(name))}."


def _other_chip(hardware: PlannedHardware, named: Figures) -> Iterator[str]:
    """Yield a problem if the figures are those of another chip of the catalog."""
    if hardware.figures == named:
        return
    for name in chip_names():
        if name != hardware.chip and figures_of(catalog_chip(name)) == hardware.figures:
            chip = f"$.hardware.chip is {shown(hardware.chip)}"
            yield f"{chip}; $.hardware.figures are those of {shown(name)}."


def _figure_problems(figures: Figures) -> Iterator[str]:
    """Yield the problems of figures that no chip has, or whose value none can have."""
    for name, value in figures.items():
        path = f"$.hardware.figures.{name}"
        unit = unit_of(name)
        if unit is None:
            names = (*(f"peak.{dtype}" for dtype in DTYPES), *FIELDS)
            yield f"unknown figure {path}. {nearest(name, names)}"
        elif unit == "yes/no":
            if value not in (0, 1):
                yield f"{path} is {shown(value)}; 1 is yes and 0 is no."
        elif unit == "count" and not (value >= 1 and value == int(value)):
            yield f"{path} is {shown(value)}; it must be a whole number from 1."
        elif value <= 0:
            yield f"{path} is {shown(value)}; it must be above 0."


def model_facts(plan: PlanDocument, model: ModelConfig) -> Iterator[Fact]:
    """Yield the sizes of the model in the plan, which follow from its architecture."""
    derived = planned_model(model)
    for key in derived.__slots__:
        if key != "architecture":
            stated = getattr(plan.model, key)
            yield Fact(f"$.model.{key}", stated, "that of its architecture", getattr(derived, key))


def memory_facts(path: str, memory: MemoryBytes) -> Iterator[Fact]:
    """Yield the total of the memory of a chip."""
    total = sum(getattr(memory, part) for part in MEMORY_PARTS)
    yield Fact(f"{path}.total", memory.total, "the sum of the parts", total)


def range_problems(path: str, seconds: Range) -> Iterator[str]:
    """Yield a problem if three predictions of the same time are not positive and ascending."""
    times = (seconds.lower, seconds.expected, seconds.upper)
    if not 0 < times[0] <= times[1] * (1 + TOLERANCE) <= times[2] * (1 + TOLERANCE) ** 2:
        listed = ", ".join(f"{time:g}" for time in times)
        yield f"{path} is {listed} s; lower, expected and upper are above 0 and ascend."


def shown(value: Any) -> str:
    """A JSON value as short text for a message."""
    if isinstance(value, int) and not isinstance(value, bool):
        return short(value)
    if isinstance(value, float):
        return f"{value:.6g}"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _agree(stated: Any, derived: Any) -> bool:
    if stated is None or derived is None:
        return stated is derived
    if isinstance(stated, float) or isinstance(derived, float):
        return math.isclose(stated, derived, rel_tol=TOLERANCE, abs_tol=1e-15)
    return bool(stated == derived)
