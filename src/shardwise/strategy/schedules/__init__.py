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
    """Every schedule of this folder, by name, in the order of publication."""
    files = sorted(_File(__file__).parent.glob("[a-z]*.py"))
    modules = [importlib.import_module(f"{__name__}.{file.stem}") for file in files]
    every: list[Schedule] = sorted((m.SCHEDULE for m in modules), key=lambda s: s.published)
    return {schedule.name: schedule for schedule in every}


def names() -> tuple[str, ...]:
    """Names of all schedules, the oldest first.

    >>> names()
    ('gpipe', '1f1b', 'interleaved', 'zb-h1', 'zb-v', 'dualpipe')
    """
    return tuple(schedules())


def searched() -> tuple[str, ...]:
    """Names of the schedules that a search tries without being asked for them."""
    return tuple(name for name, schedule in schedules().items() if schedule.searched)


def chunked(name: str) -> bool:
    """Whether stages of the schedule hold a number of chunks that is to be chosen."""
    return name in schedules() and schedules()[name].chunks is None


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
