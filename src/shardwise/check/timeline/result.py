"""Timeline of a program as values: totals by engine and by operation, transfers, bars."""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.check.timeline.steps import Operation


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A bar of the timeline.

    Args:
        engine: the engine in whose row it is drawn.
        kind: `compute`, `wait`, the kind of a transfer, or `trips` for the remaining trips of a
            loop in one bar.
        details: (key, value) pairs: FLOPs and HBM bytes of an operation; label, form and bytes of a
            transfer; or the number of trips.
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
        label: mesh axes of a collective, `hbm` or `host`.
        seconds: time on its engines.
        exposed_s: the part of `seconds` during which the core waits.
        overlapped_s: operation -> seconds that it runs while the transfer is in flight. The sum
            exceeds `seconds` if the operations could hide a longer transfer.
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
        """The part of `seconds` during which the core does not wait."""
        return self.seconds - self.exposed_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Total time of a program, and its parts.

    Args:
        step_s: seconds of one run of the whole program.
        compute_s: seconds in which the core runs operations.
        exposed_s: label of transfers -> seconds that the core waits for them.
        busy_s: engine -> seconds in which it is busy.
        operation_s: operation -> seconds on the core.
        transfers: totals of each transfer, largest `exposed_s` first.
        bars: bars in the order in which they were simulated.
    """

    step_s: float
    compute_s: float
    exposed_s: dict[str, float]
    busy_s: dict[str, float]
    operation_s: dict[Operation, float]
    transfers: tuple[TransferTotals, ...]
    bars: tuple[Bar, ...]
