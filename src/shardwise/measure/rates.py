"""Measured rates of a machine as N devices, by the names of their figures in a chip's file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRates:
    """Rates of one device of a machine that is used as N devices, all of them busy.

    Args:
        n_devices: number of devices, N.
        kind: `cpu`, `gpu` or `tpu`.
        figures: name of a figure in a chip's file -> its value in SI units.
        sources: name of a figure -> how it was found, where that is more than one measurement.
        other_load: share of the processors that other processes used during the measurement; None
            if the system does not tell.
    """

    n_devices: int
    kind: str = "cpu"
    figures: Mapping[str, float] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    other_load: float | None = None

    def with_figures(self, figures: Mapping[str, float]) -> MeasuredRates:
        """A copy with more figures."""
        return replace(self, figures={**self.figures, **figures})
