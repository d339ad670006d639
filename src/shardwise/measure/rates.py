"""Measured rates of a machine as N devices, by the names of their figures in a chip's file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

BUSY = 0.1  # share of the processors that other programs may use
DRIFT = 0.2  # by which a product may be slower at one time than at another


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRates:
    """Rates of one device of a machine that is used as N devices, all of them busy.

    Args:
        n_devices: number of devices, N.
        kind: `cpu`, `gpu` or `tpu`.
        device_kind: the chip, as JAX calls it; empty if it does not matter.
        figures: name of a figure in a chip's file -> its value in SI units.
        sources: name of a figure -> how it was found, where that is more than one measurement.
        other_load: share of the processors that other processes used during the measurement; None
            if the system does not tell.
        drift: by how much a product was slower at its slowest than at its fastest, as a fraction.
    """

    n_devices: int
    kind: str = "cpu"
    device_kind: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    other_load: float | None = None
    drift: float = 0.0

    @property
    def is_busy(self) -> bool:
        """Whether other programs ran meanwhile, or the machine's speed changed."""
        return (self.other_load or 0.0) > BUSY or self.drift > DRIFT

    def with_figures(self, figures: Mapping[str, float]) -> MeasuredRates:
        """A copy with more figures."""
        return replace(self, figures={**self.figures, **figures})
