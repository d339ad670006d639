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
Links = tuple[Sequence[Span], Num]  # distinct spans, and for each placement the index of its span


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
        links, axis_links: caches of the distinct links of several mesh axes together, and of one;
            shared like `placement_prices`.
    """

    placements: Sequence[Placement]
    index: Num = None
    placement_prices: dict[Key, Price] = field(default_factory=dict)
    layout_prices: dict[Key, Price] = field(default_factory=dict)
    links: dict[tuple[str, ...], Links] = field(default_factory=dict)
    axis_links: dict[str, Num] = field(default_factory=dict)

    def take(self, rows: Num) -> CollectiveCost:
        """The price list for the layouts at the indices `rows`."""
        index = rows if self.index is None else self.index[rows]
        return CollectiveCost(
            self.placements,
            index,
            self.placement_prices,
            links=self.links,
            axis_links=self.axis_links,
        )

    def price(self, kind: Kind, axes: tuple[str, ...]) -> Price:
        """Price of one collective that runs over all of `axes` together, for each layout."""
        key = (kind, axes)
        if key not in self.placement_prices:
            self.placement_prices[key] = self._on_placements(kind, axes)
        price = self.placement_prices[key]
        if self.index is None or len(self.placements) == 1:
            return price
        if key not in self.layout_prices:
            self.layout_prices[key] = Price(*(column[self.index] for column in price.columns))
        return self.layout_prices[key]

    def _on_placements(self, kind: Kind, axes: tuple[str, ...]) -> Price:
        """Price on each placement; placements with the same links share one computation."""
        if len(self.placements) == 1:
            return _price(kind, self.placements[0].span(axes))
        spans, index = self._distinct_links(axes)
        price = _stacked([_price(kind, span) for span in spans])
        return Price(*(column[index] for column in price.columns))

    def _distinct_links(self, axes: tuple[str, ...]) -> Links:
        """The distinct links of mesh axes taken together, and the index of each placement's."""
        import numpy as np

        if axes not in self.links:
            code: Num = 0
            for axis in axes:
                index = self._links_of_axis(axis)
                code = code * (index.max() + 1) + index
            _, first, index = np.unique(code, return_index=True, return_inverse=True)
            index_by_span: dict[Span, int] = {}
            joined = [self.placements[i].span(axes) for i in first]
            distinct = [index_by_span.setdefault(span, len(index_by_span)) for span in joined]
            self.links[axes] = ([*index_by_span], np.array(distinct)[index])
        return self.links[axes]

    def _links_of_axis(self, axis: str) -> Num:
        """For each placement, a number that tells apart the links of one mesh axis; 0 for none."""
        import numpy as np

        if not self.axis_links:
            numbers: dict[str, dict[int, int]] = {}
            columns: dict[str, list[int]] = {}
            for i, placement in enumerate(self.placements):
                for name, span in placement.spans:
                    if name not in numbers:
                        numbers[name] = {}
                        columns[name] = [0] * len(self.placements)
                    number = numbers[name].setdefault(id(span), len(numbers[name]) + 1)
                    columns[name][i] = number
            self.axis_links.update({name: np.array(column) for name, column in columns.items()})
        if axis not in self.axis_links:
            self.axis_links[axis] = np.zeros(len(self.placements), int)
        return self.axis_links[axis]


def _price(kind: Kind, span: Span) -> Price:
    if isinstance(kind, SendOnce):
        return send_once_price(span, kind)
    return collective.price(kind, span)


def _stacked(prices: list[Price]) -> Price:
    """One price whose fields are arrays over `prices`."""
    import numpy as np

    return Price(*map(np.array, zip(*(price.columns for price in prices), strict=True)))
