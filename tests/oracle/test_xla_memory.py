"""Bytes of weights on a chip: the planner's against the arguments of a compiled program."""

from __future__ import annotations

import pytest

from shardwise.models import ModelConfig, load
from shardwise.models.weights import Weight, layer_weights, outer_weights
from shardwise.ops.program import weight_elements
from shardwise.strategy.rules import TRAIN, only
from tests.oracle import transformer, xla
from tests.oracle.hlo import Mesh

pytestmark = pytest.mark.oracle

ELEMENT = 2  # bf16


def argument_bytes(config: ModelConfig, mesh: Mesh) -> int:
    """What XLA holds on each device; equal layers are one array, stacked along a dim `l`."""
    jax = xla.load()

    def laid_out(weight: Weight, n: int) -> object:
        return jax.ShapeDtypeStruct(
            (n, *weight.shape),
            jax.numpy.bfloat16,
            sharding=transformer.sharding(mesh, "weights", ("l", *weight.dims)),
        )

    arrays = [laid_out(w, g.count) for g in config.groups for w in layer_weights(config, g.layer)]
    arrays += [laid_out(w, 1) for w in outer_weights(config)]
    scaled = jax.jit(lambda weights: [w * 2 for w in weights])
    return scaled.lower(arrays).compile().memory_analysis().argument_size_in_bytes


@pytest.mark.parametrize(
    ("name", "mesh"),
    [
        ("llama3-8b", {"fsdp": 2, "tensor": 4}),
        ("llama3-70b", {"fsdp": 2, "context": 2, "tensor": 2}),
        ("llama3-70b", {"data": 2, "fsdp": 4}),
        ("gemma2-9b", {"fsdp": 4, "tensor": 2}),
        ("mixtral-8x7b", {"expert": 2, "fsdp": 2, "tensor": 2}),
        ("deepseek-v3", {"expert": 4, "fsdp": 2}),
        ("gpt2", {"fsdp": 8}),
    ],
)
def test_weights_take_the_bytes_of_the_arguments(name, mesh):
    config = load(name)
    rules = only(TRAIN, mesh)
    weights = [(w, g.count) for g in config.groups for w in layer_weights(config, g.layer)]
    weights += [(w, 1) for w in outer_weights(config)]
    held = sum(n * weight_elements(w.dims, w.shape, rules, mesh) for w, n in weights)
    assert argument_bytes(config, mesh) == held * ELEMENT
