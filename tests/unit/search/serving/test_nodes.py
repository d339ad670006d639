"""GPUs of a node that are too few for another engine count as occupied."""

from __future__ import annotations

import numpy as np
import pytest

import shardwise as sw
from shardwise.plan.serving import build
from shardwise.plan.serving.arrivals import Arrivals
from shardwise.search.serving.nodes import occupied


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
