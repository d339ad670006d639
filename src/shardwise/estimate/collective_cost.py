"""Costs of collectives on placed meshes: numbers for one placement, arrays for many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from shardwise.arrays import Num
from shardwise.estimate.routing import SendOnce, sent_once
from shardwise.ops import collective
from shardwise.ops.collective import Price
from shardwise.strategy.mesh import Placement
from shardwise.strategy.span import Span

Kind = str | SendOnce  # a str is one of `collective.KINDS`
Key = tuple[Kind, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class CollectiveCost:
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

    def take(self, rows: Num) -> CollectiveCost:
        """The prices of some of the layouts."""
        index = rows if self.index is None else self.index[rows]
        return CollectiveCost(self.placements, index, self.known)

    def of(self, kind: Kind, axes: tuple[str, ...]) -> Price:
        """Price over `axes` taken as one."""
        key = (kind, axes)
        if key not in self.known:
            self.known[key] = self._all(kind, axes)
        price = self.known[key]
        if self.index is None or len(self.placements) == 1:
            return price
        if key not in self.found:
            self.found[key] = Price(
                price.inside_s_per_byte[self.index],
                price.latency_s[self.index],
                price.outside_s_per_byte[self.index],
            )
        return self.found[key]

    def _all(self, kind: Kind, axes: tuple[str, ...]) -> Price:
        """On every placement: once for all that share their links."""
        known: dict[tuple[int, ...], Price] = {}
        found = []
        for placement in self.placements:
            key = tuple([id(span) for axis, span in placement.spans if axis in axes])
            if key not in known:
                known[key] = _one(kind, placement.span(axes))
            found.append(known[key])
        return _price(found)


def _one(kind: Kind, span: Span) -> Price:
    if isinstance(kind, SendOnce):
        return sent_once(span, kind.experts)
    return collective.price(kind, span)


def _price(prices: list[Price]) -> Price:
    """One price, or the arrays of several."""
    if len(prices) == 1:
        return prices[0]
    import numpy as np

    return Price(
        np.array([p.inside_s_per_byte for p in prices]),
        np.array([p.latency_s for p in prices]),
        np.array([p.outside_s_per_byte for p in prices]),
    )
