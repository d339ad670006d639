"""Pipeline schedules: the events of each stage, their timeline, and closed forms of the bubble.

In: stages p, microbatches m, chunks of layers on each stage v. Out: each stage's events in order
(`Schedule.order`), when they run (`simulate`), and closed forms of the bubble and of activation
memory, for numbers or arrays. Level 2: depends on neither models nor hardware, only on seconds.

One file per schedule: every file here without a leading underscore defines `SCHEDULE`, and is found
automatically.
"""

from __future__ import annotations

import functools
import importlib
from pathlib import Path as _File

from shardwise.errors import UnknownName
from shardwise.strategy.schedules._event import Event, Kind, Order, Path, line, vee
from shardwise.strategy.schedules._schedule import Condition, Schedule, Times, multiples
from shardwise.strategy.schedules._simulate import Durations, TimedEvent, Timeline, simulate
from shardwise.strategy.schedules._writer import Writer

__all__ = [
    "Condition",
    "Durations",
    "Event",
    "Kind",
    "Order",
    "Path",
    "Schedule",
    "TimedEvent",
    "Timeline",
    "Times",
    "Writer",
    "chunked",
    "find",
    "line",
    "multiples",
    "names",
    "schedules",
    "searched",
    "simulate",
    "vee",
]


@functools.cache
def schedules() -> dict[str, Schedule]:
    """Every schedule of this folder by name, the oldest publication first."""
    files = sorted(_File(__file__).parent.glob("[a-z]*.py"))
    modules = [importlib.import_module(f"{__name__}.{file.stem}") for file in files]
    by_date = sorted(modules, key=lambda module: module.SCHEDULE.published)
    return {module.SCHEDULE.name: module.SCHEDULE for module in by_date}


def names() -> tuple[str, ...]:
    """Names of all schedules, the oldest first.

    >>> names()
    ('gpipe', '1f1b', 'interleaved', 'zb-h1', 'zb-v', 'dualpipe')
    """
    return tuple(schedules())


def searched() -> tuple[str, ...]:
    """Names of the schedules that a search tries by default."""
    return tuple(name for name, schedule in schedules().items() if schedule.searched)


def chunked(name: str) -> bool:
    """Whether the schedule `name` leaves the number of chunks per stage open."""
    return name in schedules() and schedules()[name].chunks is None


def find(name: str) -> Schedule:
    """Look up a schedule by its name or an alias.

    Raises:
        UnknownName: no schedule has this name; the message lists similar ones.
    """
    normalized = name.lower().replace("_", "-")
    for schedule in schedules().values():
        if normalized in (schedule.name, *schedule.aliases):
            return schedule
    raise UnknownName("pipeline schedule", name, names())
