"""Tiny models of every family with dense layers: their logits on one device and on eight, and one
step of training on both, in a process with eight CPU devices.

`python -m tests.unit.runtime.scripts families NAMES` prints how far apart they are, as one JSON
document.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shardwise.models import ModelConfig
from shardwise.runtime.layout.mesh import role_mesh
from shardwise.runtime.layout.sharding import Table
from shardwise.runtime.training.programs import factored_roles
from shardwise.runtime.training.step import TrainStep
from shardwise.runtime.weights.descriptions import ArrayInfo, describe, layer_stacks, map_infos
from shardwise.strategy.layout import Layout, rules_of
from shardwise.strategy.mesh import Mesh
from shardwise.workload import Train
from tests.oracle import forward
from tests.unit.runtime.logits import logits
from tests.unit.runtime.model_cases import CASES, TRAINED

BATCH, SEQ = 8, 24
JOB = Train(
    batch=BATCH,
    seq=SEQ,
    weights="fp32",
    compute="fp32",
    gradients="fp32",
    moments="fp32",
    optimizer="momentum",
)
ONE = Layout(mesh=Mesh(), micro_batch=BATCH)
EIGHT = Layout(mesh=Mesh(fsdp=4, tensor=2), micro_batch=2, zero=3, sequence_parallel=True)


def step_of(config: ModelConfig, layout: Layout) -> TrainStep:
    devices = np.array(jax.devices()[: layout.mesh.n_chips])
    on = role_mesh(layout.sizes, devices, factored_roles(layout))
    table = Table(rules=rules_of(layout), mesh=on)
    return TrainStep(config=config, job=JOB, layout=layout, table=table)


def numbers(config: ModelConfig) -> Any:
    """Random weights in which a mistake shows: norms and biases are no ones and zeros."""
    random = np.random.default_rng(0)

    def made(info: ArrayInfo) -> Any:
        noise = random.normal(size=info.shape)
        wide = info.init_value is None
        return (noise * (0.25 if wide else 0.5) + (0.0 if wide else 0.5)).astype(np.float32)

    return map_infos(made, describe(config))


def filled(array: Any, like: Any) -> Any:
    """With zeros to the shape of `like`, laid out as it."""
    more = [(0, n - m) for m, n in zip(array.shape, like.shape, strict=True)]
    return jax.device_put(np.pad(array, more), like.sharding)


def expected(config: ModelConfig, weights: Any, tokens: Any) -> Any:
    """Logits of one sequence in NumPy."""
    wide = jax.tree.map(lambda w: w.astype(np.float64), weights)
    layers: list[Any] = [None] * config.n_layers
    for place, stacked in zip(layer_stacks(config), wide["layers"], strict=True):
        for i, layer in enumerate(place.layers):
            layers[layer] = {name: w[i] for name, w in stacked.items()}
    return forward.logits(config, wide["outer"], layers, tokens)


def computed(step: TrainStep, weights: Any, tokens: Any) -> Any:
    laid = jax.tree.map(filled, weights, step.shapes()[0]["weights"])
    return np.asarray(jax.jit(logits(step.config, step.table, SEQ, jnp.float32))(laid, tokens))


def trained(step: TrainStep, weights: Any, text: Any) -> tuple[float, Any]:
    """(loss, gradients) of a step: what momentum remembers after one."""
    shapes, batch = step.shapes()
    state = {
        "weights": jax.tree.map(filled, weights, shapes["weights"]),
        "moments": jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), shapes["moments"]),
    }
    state = jax.tree.map(lambda x, s: jax.device_put(x, s.sharding), state, shapes)
    given = {
        name: jax.device_put(x.reshape(batch[name].shape), batch[name].sharding)
        for name, x in (("tokens", text[:, :-1]), ("targets", text[:, 1:]))
    }
    state, loss = jax.jit(step.function())(state, given)
    found = state["moments"][0].trace
    cut = jax.tree.map(lambda m, w: np.asarray(m)[tuple(map(slice, w.shape))], found, weights)
    return float(loss), cut


def apart(a: Any, b: Any) -> float:
    """The largest distance of two trees, each array in units of its largest number."""
    shares = [
        np.abs(x - y).max() / max(np.abs(x).max(), 1e-3)
        for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    ]
    return float(np.max(shares))


def compare(name: str, config: ModelConfig) -> dict[str, float]:
    """How far the logits are from NumPy's, and a step on eight devices from one on one."""
    weights = numbers(config)
    text = np.random.default_rng(1).integers(3, config.vocab, (BATCH, SEQ + 1)).astype(np.int32)
    one, eight = step_of(config, ONE), step_of(config, EIGHT)
    wanted = expected(config, weights, text[0, :-1])
    found = {"largest": float(np.abs(wanted).max())}
    for devices, step in (("one", one), ("eight", eight)):
        found[devices] = float(np.abs(computed(step, weights, text[:, :-1])[0] - wanted).max())
    if name in TRAINED:
        loss, gradients = trained(one, weights, text)
        other, others = trained(eight, weights, text)
        found |= {"losses": abs(loss - other), "gradients": apart(gradients, others)}
    return found


def main() -> None:
    """Print one object per model."""
    print(json.dumps({name: compare(name, CASES[name]) for name in sys.argv[1:]}))


if __name__ == "__main__":
    main()
