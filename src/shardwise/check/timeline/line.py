"""The timeline of a program as values: totals by engine and by operation, transfers, bars."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A bar of the timeline.

    Args:
        engine: its row.
        group: planned operation and pass.
        what: `compute`, `wait`, the kind of a transfer, or `trips` for loops that are not unrolled.
        detail: of a transfer its label, form and bytes; of trips how many.
    """

    engine: str
    name: str
    group: tuple[str, str]
    what: str
    start_s: float
    end_s: float
    detail: tuple[tuple[str, str | float], ...] = ()

    @property
    def seconds(self) -> float:
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """One transfer of the program, over all its trips.

    Args:
        label: mesh axes, `hbm` or `host`.
        count: how often it runs.
        seconds: on its engines; `exposed_s` of it the core waits for.
        beside: (planned operation, pass) -> seconds of operations that run while a collective is
            under way; more than `seconds` where those could hide more.
    """

    name: str
    label: str
    kind: str
    form: str
    group: tuple[str, str]
    count: float
    bytes: float
    seconds: float
    exposed_s: float
    beside: dict[tuple[str, str], float]

    @property
    def hidden_s(self) -> float:
        return self.seconds - self.exposed_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """How long a program takes, and with what.

    Args:
        step_s: all of it.
        compute_s: operations of the core.
        exposed: label of transfers -> seconds that the core waits for them.
        busy: engine -> seconds at work.
        groups: (planned operation, pass) -> seconds of the core.
        transfers: each with what of it is hidden and exposed, the most exposed first.
        spans: bars in the order in which they were found.
    """

    step_s: float
    compute_s: float
    exposed: dict[str, float]
    busy: dict[str, float]
    groups: dict[tuple[str, str], float]
    transfers: tuple[Overlap, ...]
    spans: tuple[Span, ...]
