"""Prices of collectives on placed meshes: numbers for one placement, arrays for many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from shardwise.arrays import Num
from shardwise.estimate.routing import SendOnce, send_once_price
from shardwise.ops import collective
from shardwise.ops.collective import Price
from shardwise.strategy.mesh import Placement
from shardwise.strategy.span import Span

Kind = str | SendOnce  # a str is one of `collective.KINDS`
Key = tuple[Kind, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class CollectiveCost:
    """Price list of collectives over mesh axes, for all layouts at once.

    Prices are computed when first looked up.

    Args:
        placements: distinct placements.
        index: for each layout, the index of its placement in `placements`; None for one layout on
            one placement.
        placement_prices: cache of prices with one element per placement, shared with all results
            of `take`.
        layout_prices: cache of prices with one element per layout.
    """

    placements: Sequence[Placement]
    index: Num = None
    placement_prices: dict[Key, Price] = field(default_factory=dict)
    layout_prices: dict[Key, Price] = field(default_factory=dict)

    def take(self, rows: Num) -> CollectiveCost:
        """The price list for the layouts at the indices `rows`."""
        index = rows if self.index is None else self.index[rows]
        return CollectiveCost(self.placements, index, self.placement_prices)

    def price(self, kind: Kind, axes: tuple[str, ...]) -> Price:
        """Price of one collective that runs over all of `axes` together, for each layout."""
        key = (kind, axes)
        if key not in self.placement_prices:
            self.placement_prices[key] = self._on_placements(kind, axes)
        price = self.placement_prices[key]
        if self.index is None or len(self.placements) == 1:
            return price
        if key not in self.layout_prices:
            self.layout_prices[key] = Price(
                price.inside_s_per_byte[self.index],
                price.latency_s[self.index],
                price.outside_s_per_byte[self.index],
            )
        return self.layout_prices[key]

    def _on_placements(self, kind: Kind, axes: tuple[str, ...]) -> Price:
        """Price on each placement; placements with the same links share one computation."""
        price_by_links: dict[tuple[int, ...], Price] = {}
        prices = []
        for placement in self.placements:
            links = tuple([id(span) for axis, span in placement.spans if axis in axes])
            if links not in price_by_links:
                price_by_links[links] = _price(kind, placement.span(axes))
            prices.append(price_by_links[links])
        return _stacked(prices)


def _price(kind: Kind, span: Span) -> Price:
    if isinstance(kind, SendOnce):
        return send_once_price(span, kind.experts_per_token)
    return collective.price(kind, span)


def _stacked(prices: list[Price]) -> Price:
    """One price whose fields are arrays over `prices`; a single price unchanged."""
    if len(prices) == 1:
        return prices[0]
    import numpy as np

    return Price(
        np.array([price.inside_s_per_byte for price in prices]),
        np.array([price.latency_s for price in prices]),
        np.array([price.outside_s_per_byte for price in prices]),
    )
