"""Tiles, exponentials, power, tokens sent once: small formulas, against counts by hand."""

from __future__ import annotations

import numpy as np
import pytest

from shardwise.estimate.kernels import (
    clock_under_power_limit,
    depth_efficiency,
    head_dim_efficiency,
    tile_efficiency,
    tiled_keys,
    warp_efficiency,
)
from shardwise.estimate.routing import SendOnce, send_once_price
from shardwise.formulas.experts import places_hit
from shardwise.strategy.span import Span, Tier


def test_a_tile_too_many_costs_a_wave() -> None:
    assert tile_efficiency(256 * 108, 128, 108) == 1.0
    assert tile_efficiency(256 * 108 + 1, 128, 108) < 0.7
    one_row = tile_efficiency(1, 128, 1)
    assert one_row == pytest.approx(0.95 / 128)  # the smallest tile, one row of it useful


def test_experts_together_fill_what_one_leaves_idle() -> None:
    assert tile_efficiency(512, 512, 132, groups=16) > 2 * tile_efficiency(512, 512, 132)


def test_formulas_take_arrays() -> None:
    rows = np.array([1024, 4096, 16384])
    assert np.all(np.diff(tile_efficiency(rows, 8192, 132)) >= 0)
    assert np.all(np.diff(depth_efficiency(rows, 4096.0)) > 0)


def test_short_sums_narrow_heads_and_fast_dtypes_lose_more() -> None:
    assert depth_efficiency(2048, 4096.0) < depth_efficiency(8192, 4096.0) < 1
    assert depth_efficiency(2048, 8192.0) < depth_efficiency(2048, 4096.0)
    assert head_dim_efficiency(128, 4096.0) == pytest.approx(1.0)
    assert head_dim_efficiency(64, 8192.0) < head_dim_efficiency(64, 2048.0) < 1
    assert (warp_efficiency(2048.0), warp_efficiency(8192.0)) == (1.0, pytest.approx(0.315))


def test_masks_are_computed_in_tiles() -> None:
    assert tiled_keys(2048, 1, 128) == 2112
    assert tiled_keys(128, 2, 128) == 256  # a window of one tile lies across two


def test_power() -> None:
    assert clock_under_power_limit(700.0, 700.0) == clock_under_power_limit(900.0, 700.0) == 1.0
    assert clock_under_power_limit(500.0, 700.0) == pytest.approx(0.845, abs=1e-3)


def test_a_token_goes_once_to_a_place() -> None:
    span = Span(tiers=(Tier("node", 8, 450e9), Tier("scale-out", 8, 50e9)))
    # Between nodes: 5.25 of 8, of which an eighth stay; the network is slower than NVLink here.
    price = send_once_price(span, SendOnce(experts_per_token=8))
    # Joined are the tokens of 64 chips, each sent to as many chips as have its experts.
    joined = 64 * places_hit(64, 8)
    assert price.s_per_byte * joined == pytest.approx(places_hit(8, 8) * 7 / 8 / 50e9)


def test_a_token_goes_to_the_nodes_of_its_groups_only() -> None:
    """DeepSeek-V3: 8 experts of 256, from 4 of 8 groups of 32 (arXiv 2412.19437, section 2.1.2)."""
    limited = SendOnce(experts_per_token=8, n_groups=8, top_groups=4)
    # A group on each of 8 nodes: the experts are on 4 of them at most.
    assert limited.copies(8) == pytest.approx(places_hit(4, 8))
    # Two groups on each of 4 nodes: a node is left out if both of its groups are, 15 times in 70.
    assert limited.copies(4) == pytest.approx(places_hit(4 * 55 / 70, 8))
    # Groups over 8 chips each: half of the 64 chips can be reached.
    assert limited.copies(64) == pytest.approx(places_hit(32, 8))
    free = SendOnce(experts_per_token=8)
    for n in (2, 4, 8, 16, 64):
        assert limited.copies(n) < free.copies(n) == pytest.approx(places_hit(n, 8))


def test_more_exponentials_speed_attention_up_where_they_are_what_it_waits_for() -> None:
    plain, ultra = (
        head_dim_efficiency(128, 9000.0),
        head_dim_efficiency(128, 9000.0, exponentials=32.0),
    )
    assert plain == pytest.approx(1.0)
    assert 1.0 < ultra < 2.0
    assert head_dim_efficiency(128, 1e-3, exponentials=32.0) == pytest.approx(1.0)  # products alone
