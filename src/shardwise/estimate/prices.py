"""Prices of collectives on placed meshes: numbers for one placement, arrays for many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from shardwise.arrays import Num
from shardwise.estimate.routing import sent_once_s_per_byte
from shardwise.ops import collective
from shardwise.ops.collective import Price
from shardwise.strategy.mesh import Placement

Key = tuple[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Prices:
    """Looks up what a kind of collective costs over some mesh axes, for every layout at once.

    Args:
        placements: distinct ones.
        index: the placement of each layout; None for the one layout on the one placement.
        known: prices on `placements`, shared by all that are taken from one another.
    """

    placements: Sequence[Placement]
    index: Num = None
    known: dict[Key, Price] = field(default_factory=dict)
    found: dict[Key, Price] = field(default_factory=dict)

    def take(self, rows: Num) -> Prices:
        """The prices of some of the layouts."""
        index = rows if self.index is None else self.index[rows]
        return Prices(self.placements, index, self.known)

    def of(self, kind: str, axes: tuple[str, ...]) -> Price:
        """Price over `axes` taken as one."""
        key = (kind, axes)
        if key not in self.known:
            self.known[key] = self._all(kind, axes)
        price = self.known[key]
        if self.index is None or len(self.placements) == 1:
            return price
        if key not in self.found:
            per_byte, latency = price.s_per_byte[self.index], price.latency_s[self.index]
            self.found[key] = Price(per_byte, latency)
        return self.found[key]

    def sent_once(self, axes: tuple[str, ...], chosen: int) -> Num:
        """Seconds per byte of a chip's residual to exchange tokens with their experts, each sent
        once to a place (`routing`)."""
        key = (f"sent_once {chosen}", axes)
        if key not in self.known:
            rates = [sent_once_s_per_byte(p.span(axes), chosen) for p in self.placements]
            self.known[key] = _price([Price(rate, 0.0) for rate in rates])
        found = self.known[key].s_per_byte
        return found if self.index is None or len(self.placements) == 1 else found[self.index]

    def _all(self, kind: str, axes: tuple[str, ...]) -> Price:
        """On every placement: once for all that share their links."""
        known: dict[tuple[int, ...], Price] = {}
        found = []
        for placement in self.placements:
            key = tuple([id(span) for axis, span in placement.spans if axis in axes])
            if key not in known:
                known[key] = collective.price(kind, placement.span(axes))
            found.append(known[key])
        return _price(found)


def _price(prices: list[Price]) -> Price:
    """One price, or the arrays of several."""
    if len(prices) == 1:
        return prices[0]
    import numpy as np

    return Price(np.array([p.s_per_byte for p in prices]), np.array([p.latency_s for p in prices]))
