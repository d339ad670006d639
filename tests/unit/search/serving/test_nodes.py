"""GPUs of a node that are too few for another engine count as occupied."""

from __future__ import annotations

import numpy as np
import pytest

import shardwise as sw
from shardwise.plan.serving import build, traffic_search
from shardwise.plan.serving.arrivals import Arrivals
from shardwise.plan.serving.resize import resized
from shardwise.plan.serving.traffic import estimate
from shardwise.search.serving.nodes import occupied
from shardwise.search.serving.rank import rank


@pytest.mark.parametrize(
    ("machine", "chips", "engine_chips", "expected"),
    [
        ("h100:8", 7, 4, 8),  # one GPU is left: no engine of four
        ("h100:8", 4, 4, 4),  # another engine of four fits
        ("h100:8", 7, 1, 7),
        ("h100:16", 11, 8, 16),
        ("h100:16", 16, 16, 16),
        ("gb200:72", 64, 16, 72),
        ("v5e:4x4", 7, 4, 7),  # a torus has no nodes
    ],
)
def test_the_rest_of_a_node(machine: str, chips: int, engine_chips: int, expected: int) -> None:
    taken = occupied(sw.hardware(machine), np.array([chips]), np.array([engine_chips]))
    assert taken == [expected]


@pytest.mark.parametrize("arrivals", [None, Arrivals()])
def test_idle_gpus_of_a_node_save_nothing(arrivals: Arrivals | None) -> None:
    job = sw.Serve(prompt=4000, output=1000, rate=4.0, engine="vllm")
    machine = sw.hardware("h100:8")
    plan = build.plan(sw.model("qwen3-32b"), machine, job, arrivals=arrivals)
    strategy = plan.strategy
    assert not strategy.disaggregated
    assert (strategy.servers.count, strategy.servers.n_chips, strategy.n_chips) == (2, 4, 8)


def test_engines_are_not_removed_where_their_gpus_would_be_idle() -> None:
    model, machine = sw.model("qwen3-32b"), sw.hardware("h100:8")
    job = sw.Serve(prompt=4000, output=1000, rate=3.0, ttft_s=2.0, tpot_s=0.05, engine="vllm")
    request = build.search_request(model, machine, job, disaggregate=True)
    sizes = [
        (candidate, candidate.server.n_chips, prefill.n_chips)
        for candidate in rank(request, 200, each_prefill=True).candidates
        if (prefill := candidate.prefill_server)
    ]
    candidate = next(found for found, *chips in sizes if chips == [4, 1])
    full = resized(candidate, 1, 4, 3.0, machine)
    assert full.chips == 8
    assert resized(candidate, 1, 3, 3.0, machine).chips == 8
    search = traffic_search._TrafficSearch(Arrivals(), 3.0, machine, most=None)
    kept, _ = search.with_fewer(full, estimate(full, Arrivals(), 3.0))
    assert kept.n_prefill == 4
