"""Bounds on what was measured: the gate of a test in continuous integration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from shardwise import units
from shardwise.compare.result import PairComparison, StepComparison
from shardwise.errors import BadInput, Problems, UnknownName

PARSERS = {
    "step": units.parse_seconds,
    "ttft": units.parse_seconds,
    "tpot": units.parse_seconds,
    "memory": units.parse_bytes,
    "loss": lambda text, what: _number(text, what),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Excess:
    """A quantity above its bound."""

    quantity: str
    bound: float
    value: float


def parse_bounds(text: str) -> dict[str, float]:
    """Parse bounds: `step=500ms,memory=14GiB`.

    Raises:
        BadInput: with every part that is wrong.
    """
    bounds: dict[str, float] = {}
    problems = Problems()
    for part in text.split(","):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals:
            problems.refuse(f'--max "{part}" is not NAME=VALUE. Write step=500ms,memory=14GiB.')
        elif name not in PARSERS:
            problems.read(_refuse, name)
        else:
            bounds[name] = problems.read(PARSERS[name], value, f"--max {name}")
    problems.done()
    return bounds


def exceeded(
    comparison: StepComparison | PairComparison, bounds: Mapping[str, float]
) -> list[Excess]:
    """What is above its bound; of two plans, runs or traces, the second is judged.

    Raises:
        BadInput: the inputs do not have a quantity.
    """
    values = dict(_values(comparison))
    missing = [name for name in bounds if name not in values]
    if missing:
        have = ", ".join(values) or "none of them"
        raise BadInput(f"--max {', '.join(missing)}: the inputs do not have it. They have {have}.")
    return [
        Excess(quantity=name, bound=bound, value=values[name])
        for name, bound in bounds.items()
        if not values[name] <= bound  # NaN is above every bound
    ]


def _values(comparison: StepComparison | PairComparison) -> Iterator[tuple[str, float]]:
    if isinstance(comparison, PairComparison):
        for row in (comparison.rows[-1], *comparison.figures):
            if row.group in PARSERS:
                yield row.group, row.second
        return
    if comparison.step_s is not None:
        yield "step", comparison.step_s
    for figure in comparison.figures:
        value = figure.compiled if figure.measured is None else figure.measured
        if figure.quantity in PARSERS and value is not None:
            yield figure.quantity, value


def _refuse(name: str) -> None:
    raise UnknownName("quantity of --max", name, PARSERS)


def _number(text: str, what: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise BadInput(f"{what}={text} is not a number.") from None
