"""Bytes of element-wise steps under `tensor`: who copies which tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardwise.estimate.training.chip_rates import Rates
from shardwise.estimate.training.microbatch import elementwise_bytes
from shardwise.hardware import parse_chip
from shardwise.models import load
from shardwise.strategy.layout import Layout
from shardwise.strategy.mesh import Mesh
from shardwise.workload import Train

SEQ = 4096
CONFIG = load("qwen3-30b-a3b")
ROUTED = 4.0 * 8 * 2048  # numbers of a token that are copied to its experts and back, in a layer
RATES = Rates(chip=parse_chip("h100"), job=Train(batch=1, seq=SEQ))


def bytes_per_token(layout: Layout) -> float:
    """Bytes of a token in all layers on one chip."""
    return float(elementwise_bytes(CONFIG, layout, RATES)) / SEQ


@pytest.mark.parametrize(("expert_tensor", "sharers"), [(None, 4), (4, 4), (2, 2), (1, 1)])
def test_chips_that_share_an_expert_all_copy_its_tokens(
    expert_tensor: int | None, sharers: int
) -> None:
    one = Layout(mesh=Mesh())
    four = Layout(mesh=Mesh(tensor=4), expert_tensor=expert_tensor, sequence_parallel=True)
    routed_bytes = 2 * CONFIG.n_layers * ROUTED
    rest = bytes_per_token(one) - routed_bytes
    assert bytes_per_token(four) == pytest.approx((rest + sharers * routed_bytes) / 4)


def test_without_sequence_parallelism_each_chip_has_the_whole_residual() -> None:
    four = Layout(mesh=Mesh(tensor=4), expert_tensor=1, sequence_parallel=True)
    whole = replace(four, sequence_parallel=False)
    residual_bytes = 2 * CONFIG.n_layers * 10 * 2048
    assert bytes_per_token(whole) - bytes_per_token(four) == pytest.approx(residual_bytes * 3 / 4)
