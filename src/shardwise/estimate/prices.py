"""Prices of collectives on placed meshes: numbers for one placement, arrays for many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from shardwise.arrays import Num
from shardwise.ops import collective
from shardwise.ops.collective import Price
from shardwise.strategy.mesh import Placement
from shardwise.strategy.span import Span


@dataclass(frozen=True, slots=True)
class Prices:
    """Looks up what a kind of collective costs over some mesh axes, for every placement at once."""

    placements: Sequence[Placement]
    found: dict[tuple[str, tuple[str, ...]], Price] = field(default_factory=dict)
    spans: dict[tuple[str, ...], list[Span]] = field(default_factory=dict)
    whole: Prices | None = None
    rows: Sequence[int] = ()

    def take(self, rows: Sequence[int]) -> Prices:
        """The prices of some of the placements, from what is known of all."""
        return Prices([self.placements[i] for i in rows], whole=self, rows=rows)

    def of(self, kind: str, axes: tuple[str, ...]) -> Price:
        """Price over `axes` taken as one: numbers for one placement, arrays for several."""
        key = (kind, axes)
        if key not in self.found:
            self.found[key] = self._make(kind, axes)
        return self.found[key]

    def _make(self, kind: str, axes: tuple[str, ...]) -> Price:
        if self.whole and len(self.whole.placements) > 1:
            found = self.whole.of(kind, axes)
            rows = list(self.rows) if len(self.rows) > 1 else self.rows[0]
            return Price(found.s_per_byte[rows], found.latency_s[rows])
        if axes not in self.spans:
            self.spans[axes] = [p.span(axes) for p in self.placements]
        prices = [collective.price(kind, span) for span in self.spans[axes]]
        if len(prices) == 1:
            return prices[0]
        import numpy as np

        return Price(
            np.array([p.s_per_byte for p in prices]), np.array([p.latency_s for p in prices])
        )


def mesh_arrays(meshes: Sequence[Mapping[str, int]]) -> dict[str, Num]:
    """Axis -> size: numbers for one mesh, integer arrays for several."""
    if len(meshes) == 1:
        return dict(meshes[0])
    import numpy as np

    return {axis: np.array([m[axis] for m in meshes]) for axis in meshes[0]}
