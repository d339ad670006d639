"""Timeline of a program as values: totals by engine and by operation, transfers, bars."""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.check.timeline.steps import Operation


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A bar of the timeline.

    Args:
        engine: its row.
        kind: `compute`, `wait`, the kind of a transfer, or `trips` for loops that are not unrolled.
        details: label, form and bytes of a transfer, or the number of trips.
    """

    engine: str
    name: str
    operation: Operation
    kind: str
    start_s: float
    end_s: float
    details: tuple[tuple[str, str | float], ...] = ()

    @property
    def seconds(self) -> float:
        """Length of the bar."""
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferTotals:
    """Totals of one transfer over all its runs.

    Args:
        label: mesh axes, `hbm` or `host`.
        seconds: on its engines; during `exposed_s` of them the core waits.
        overlapped_s: operation -> seconds that it runs while a collective is in flight; the sum
            exceeds `seconds` where operations could hide more.
    """

    name: str
    label: str
    kind: str
    form: str
    operation: Operation
    n_runs: float
    bytes: float
    seconds: float
    exposed_s: float
    overlapped_s: dict[Operation, float]

    @property
    def hidden_s(self) -> float:
        """Seconds during which the core does not wait."""
        return self.seconds - self.exposed_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Total time of a program, and its parts.

    Args:
        step_s: the whole program.
        compute_s: operations of the core.
        exposed_s: label of transfers -> seconds that the core waits for them.
        busy_s: engine -> seconds at work.
        operation_s: operation -> seconds of the core.
        transfers: most exposed first.
        bars: in the order of the simulation.
    """

    step_s: float
    compute_s: float
    exposed_s: dict[str, float]
    busy_s: dict[str, float]
    operation_s: dict[Operation, float]
    transfers: tuple[TransferTotals, ...]
    bars: tuple[Bar, ...]
