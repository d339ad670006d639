"""A plan in a notebook: headline, numbers, two bars and the reasons, as HTML without a script."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from shardwise.plan.schema.json_io import AnyPlan
from shardwise.ui import charts
from shardwise.ui.numbers import numbers
from shardwise.ui.sentences import headline, sentences
from shardwise.units import show_gib, show_seconds

# Okabe and Ito's colours, which colour-blind people tell apart.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#f0e442", "#8a8a8a")
EXPOSED = "#d55e00"
WIDTH, ROW = 560, 20  # pixels
LABEL = 110


def html(plan: AnyPlan) -> str:
    """The plan as a fragment of HTML; all text in it is escaped."""
    primary = [number for number in numbers(plan) if number.primary]
    cells = "".join(
        f"<td>{escape(number.label)}<br><b>{escape(number.value)}</b></td>" for number in primary
    )
    reasons = "".join(f"<li>{escape(reason)}</li>" for reason in sentences(plan))
    return (
        f"<div><p><b>{escape(headline(plan))}</b></p><table><tr>{cells}</tr></table>"
        f"{_timeline(charts.timeline(plan))}{_memory(charts.memory(plan))}<ul>{reasons}</ul></div>"
    )


def _timeline(timeline: Mapping[str, Any]) -> str:
    """Rows of a step or pass on one scale; exposed traffic has a colour of its own."""
    scale = (WIDTH - LABEL) / timeline["seconds"]
    shapes = []
    for number, row in enumerate(timeline["rows"]):
        shapes.append(_label(row["name"], number))
        for position, span in enumerate(row["spans"]):
            colour = EXPOSED if span["kind"] == "exposed" else COLOURS[position % len(COLOURS)]
            text = f"{span['name']} {show_seconds(span['seconds'])}"
            left = LABEL + span["start"] * scale
            shapes.append(_bar(left, span["seconds"] * scale, number, colour, text))
    name = f"timeline of a {timeline['unit']}, {show_seconds(timeline['seconds'])}"
    return _picture(shapes, len(timeline["rows"]), name)


def _memory(memory: Mapping[str, Any]) -> str:
    """The parts of a chip's memory, up to its capacity."""
    scale = (WIDTH - LABEL) / max(memory["capacity"], memory["total"])
    shapes = [_label("memory", 0), *_parts(memory["parts"], scale)]
    limit = LABEL + (memory["capacity"] - memory["margin"]) * scale
    shapes.append(f"<path d='M{limit:.1f},0v{ROW}' stroke='currentColor' stroke-width='2'/>")
    name = f"memory of a chip, {show_gib(memory['total'])} of {show_gib(memory['capacity'])}"
    return _picture(shapes, 1, name)


def _parts(parts: list[dict[str, Any]], scale: float) -> Iterator[str]:
    left = float(LABEL)
    for number, part in enumerate(parts):
        width = part["bytes"] * scale
        text = f"{part['name']} {show_gib(part['bytes'])}"
        yield _bar(left, width, 0, COLOURS[number % len(COLOURS)], text)
        left += width


def _picture(shapes: list[str], n_rows: int, name: str) -> str:
    return (
        f"<p>{escape(name)}</p><svg width='{WIDTH}' height='{n_rows * ROW}' role='img' "
        f"aria-label='{escape(name)}'>{''.join(shapes)}</svg>"
    )


def _label(text: str, row: int) -> str:
    return (
        f"<text x='{LABEL - 8}' y='{row * ROW + 14}' text-anchor='end' font-size='12' "
        f"fill='currentColor'>{escape(text)}</text>"
    )


def _bar(left: float, width: float, row: int, colour: str, text: str) -> str:
    return (
        f"<rect x='{left:.1f}' y='{row * ROW + 2}' width='{max(width, 0.5):.1f}' "
        f"height='{ROW - 4}' fill='{colour}'><title>{escape(text)}</title></rect>"
    )
