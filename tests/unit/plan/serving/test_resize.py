"""By how much deployments grow in the search by simulation."""

from __future__ import annotations

import pytest

from shardwise.plan.serving.resize import chips_to_next_price, price_level


@pytest.mark.parametrize("chips", [1, 2, 30, 33, 34, 1000, 123_456, 9_999_999])
def test_the_next_price_is_reached_with_the_fewest_chips(chips: int) -> None:
    more = chips_to_next_price(chips)
    assert price_level(chips + more) == price_level(chips) + 1 or more == 1
    assert price_level(chips + more) > price_level(chips)
    assert price_level(chips + more - 1) == price_level(chips)
