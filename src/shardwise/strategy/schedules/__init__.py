"""Pipeline schedules: lists of events, from which bubble, memory and a timeline all follow.

In: stages p, microbatches m, chunks of layers on each stage v. Out: each stage's events in order
(`Schedule.order`), when they run (`simulate`), and closed forms of bubble and activations in flight
that take numbers or arrays. Layer 2: knows neither models nor hardware, only seconds per event.

One file per schedule: a file placed here that defines `SCHEDULE` is found by itself.
"""

from __future__ import annotations

import functools
import importlib
from pathlib import Path as _File

from shardwise.errors import UnknownName
from shardwise.strategy.schedules._event import Event, Kind, Order, Path, line, vee
from shardwise.strategy.schedules._schedule import Rule, Schedule, Times, multiples
from shardwise.strategy.schedules._simulate import Durations, Span, Timeline, simulate
from shardwise.strategy.schedules._writer import Writer

__all__ = [
    "Durations",
    "Event",
    "Kind",
    "Order",
    "Path",
    "Rule",
    "Schedule",
    "Span",
    "Timeline",
    "Times",
    "Writer",
    "find",
    "line",
    "multiples",
    "names",
    "schedules",
    "simulate",
    "vee",
]


@functools.cache
def schedules() -> dict[str, Schedule]:
    """Every schedule of this folder, by name."""
    found: dict[str, Schedule] = {}
    for file in sorted(_File(__file__).parent.glob("[a-z]*.py")):
        schedule: Schedule = importlib.import_module(f"{__name__}.{file.stem}").SCHEDULE
        found[schedule.name] = schedule
    return found


def names() -> tuple[str, ...]:
    """Names of all schedules.

    >>> names()
    ('1f1b', 'dualpipe', 'gpipe', 'interleaved', 'zb-h1', 'zb-v')
    """
    return tuple(sorted(schedules()))


def find(name: str) -> Schedule:
    """The schedule of that name or alias.

    Raises:
        UnknownName: no such schedule, with the close ones.
    """
    wanted = name.lower().replace("_", "-")
    for schedule in schedules().values():
        if wanted in (schedule.name, *schedule.aliases):
            return schedule
    raise UnknownName("pipeline schedule", name, names())
