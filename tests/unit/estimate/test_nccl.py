"""The time that collectives of GPUs take to start."""

from __future__ import annotations

import math

import numpy as np
import pytest

from shardwise.estimate import nccl
from shardwise.ops.collective import price, ring_steps
from shardwise.strategy.span import Ring, Span, Tier


def gpus(per_node: int, nodes: int) -> Span:
    return Span(tiers=(Tier("node", per_node, 450e9), Tier("scale-out", nodes, 50e9)))


def test_steps_of_a_ring() -> None:
    """16 GPUs in 2 nodes: 14 steps over NVLink and 1 between the nodes; twice in an AllReduce."""
    span = gpus(8, 2)
    assert ring_steps("all_gather", span) == (14, 1)
    assert ring_steps("all_reduce", span) == (28, 2)
    assert ring_steps("all_to_all", span) == (1, 1)
    assert ring_steps("permute", gpus(1, 4)) == (0, 1)


def test_a_torus_and_slices_have_no_steps() -> None:
    torus = Span(rings=(Ring(0, 4, 1, True, 9e10),), tiers=(Tier("dcn", 2, 6e9),))
    assert ring_steps("all_gather", torus) == (0, 0)
    cost = price("all_gather", torus)
    assert nccl.time_s("all_gather", cost, 1e-3) == 1e-3


def test_large_gathers_run_at_full_bandwidth_and_small_ones_start_fast() -> None:
    cost = price("all_gather", gpus(8, 16))
    large = nccl.time_s("all_gather", cost, 10e-3)
    assert large == pytest.approx(10e-3 + 8.4e-6 + 112 * 3.4e-6 + 15 * 9.6e-6)
    small = nccl.time_s("all_gather", cost, 1e-6)
    assert small == pytest.approx(4e-6 + 3.6e-6 + 112 * 0.85e-6 + 15 * 2.7e-6)


def test_a_protocol_costs_bandwidth_or_steps() -> None:
    """Few bytes take three times longer, many the steps of a ring of 8 GPUs, twice 7 of them."""
    cost = price("all_reduce", gpus(8, 1))
    assert nccl.protocol_s(cost, 1e-6) == pytest.approx(3e-6)
    assert nccl.protocol_s(cost, 1e-3) == pytest.approx(14 * 1.3e-6)
    torus = price("all_reduce", Span(rings=(Ring(0, 4, 1, True, 9e10),)))
    assert nccl.protocol_s(torus, 1e-3) == 0


def test_an_all_reduce_of_many_nodes_uses_a_tree() -> None:
    span = gpus(8, 1024)
    seconds = nccl.time_s("all_reduce", price("all_reduce", span), 1e-3)
    assert seconds == pytest.approx(1e-3 / 0.9 + 14 * 28e-6 + 20 * 50e-6)
    ring_s = nccl.RING.time_s(1e-3, *ring_steps("all_reduce", span))
    assert seconds < ring_s / 10


def test_time_grows_with_the_chips() -> None:
    """A collective over a million GPUs is slower than one over eight."""
    times = [
        nccl.time_s("all_gather", price("all_gather", gpus(8, n)), 1e-3) for n in (1, 64, 1 << 17)
    ]
    assert times == sorted(times)
    assert times[-1] > 1.0


def test_arrays_are_numbers() -> None:
    costs = [price("all_reduce", gpus(8, n)) for n in (1, 2, 512)]
    columns = type(costs[0])(*(np.array(c) for c in zip(*(x.columns for x in costs), strict=True)))
    together = nccl.time_s("all_reduce", columns, np.array([1e-3, 1e-5, 2e-3]))
    alone = [
        nccl.time_s("all_reduce", c, t) for c, t in zip(costs, (1e-3, 1e-5, 2e-3), strict=True)
    ]
    assert together == pytest.approx(alone, rel=1e-15)
    assert all(math.isfinite(t) for t in alone)
