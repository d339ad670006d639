"""Parity of layouts that cut sequences, or have more chips of `tensor` than KV heads.

`python -m tests.unit.runtime.parity_context` prints, for each model and layout, the losses of two
steps and the largest distance of a weight from those of one device, as one JSON document.
"""

from __future__ import annotations

import functools
import json
import os
from typing import Any

os.environ["XLA_FLAGS"] = (
    "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"
)
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np

from shardwise.models import ModelConfig
from shardwise.runtime.mesh import role_mesh
from shardwise.runtime.planned import factored, parts
from shardwise.runtime.step import TrainStep
from shardwise.runtime.table import Table
from shardwise.runtime.weights import initialised
from shardwise.strategy.layout import Layout, rules_of
from shardwise.strategy.mesh import Mesh
from shardwise.workload import Train

STEPS, BATCH, SEQ, VOCAB = 2, 8, 32, 64
JOB = Train(batch=BATCH, seq=SEQ, weights="fp32", compute="fp32", gradients="fp32", moments="fp32")


def model(n_kv_heads: int) -> ModelConfig:
    return ModelConfig.dense(
        n_layers=2, d_model=32, d_ff=64, n_heads=8, n_kv_heads=n_kv_heads, vocab=VOCAB
    )


MODELS = {"two heads": model(2), "one head": model(1)}


def layout(mesh: Mesh, kind: str = "gather", **words: Any) -> Layout:
    shards = mesh.data * mesh.fsdp * words.get("n_microbatches", 1)
    return Layout(mesh=mesh, micro_batch=BATCH // shards, context_kind=kind, **words)


MIXED = {"mesh": Mesh(context=2, tensor=2, fsdp=2), "zero": 3, "sequence_parallel": True}
DOTS = {"remat": "selective", "recomputed": ("norms", "mla_up", "activation")}
# Two KV heads: `tensor` 4 and 8 hold copies of them, and so do 8 chips that exchange heads.
CASES: dict[str, tuple[str, Layout]] = {
    "gather, tensor, fsdp": ("two heads", layout(kind="gather", **MIXED)),
    "ring, tensor, fsdp, dots": ("two heads", layout(kind="ring", **MIXED, **DOTS)),
    "ulysses, tensor, fsdp, full remat": (
        "two heads",
        layout(kind="ulysses", **MIXED, remat="full"),
    ),
    "ring 8, full remat": ("two heads", layout(Mesh(context=8), "ring", remat="full")),
    "ring 4, zero 2, accumulated": (
        "two heads",
        layout(Mesh(context=4, data=2), "ring", zero=2, n_microbatches=2),
    ),
    "ulysses 8, heads copied": ("two heads", layout(Mesh(context=8), "ulysses")),
    "one head, tensor 4, fsdp": (
        "one head",
        layout(Mesh(tensor=4, fsdp=2), zero=3, sequence_parallel=True),
    ),
    "two heads, tensor 8": ("two heads", layout(Mesh(tensor=8), sequence_parallel=True)),
    "two heads, tensor 4, ring": (
        "two heads",
        layout(Mesh(tensor=4, context=2), "ring", zero=1),
    ),
}


def train(config: ModelConfig, layout: Layout) -> tuple[list[float], list[Any]]:
    """(losses, weights after them)."""
    devices = np.array(jax.devices()[: layout.mesh.n_chips])
    on = role_mesh(layout.sizes, devices, factored(layout), parts(config, layout))
    table = Table(rules=rules_of(layout), on=on)
    step = TrainStep(config=config, job=JOB, layout=layout, table=table)
    shapes, batch = step.shapes()
    weights = initialised(step.infos, jax.random.key(0), jnp.float32)
    state = {"weights": weights, "moments": step.optimizer.init(weights)}
    state = jax.tree.map(lambda x, s: jax.device_put(x, s.sharding), state, shapes)
    function, random = jax.jit(step.function()), np.random.default_rng(0)
    losses = []
    for _ in range(STEPS):
        text = random.integers(0, VOCAB, (BATCH, SEQ + 1)).astype(np.int32)
        cut = step.arranged({"tokens": text[:, :-1], "targets": text[:, 1:]})
        given = {
            name: jax.device_put(x.reshape(batch[name].shape), batch[name].sharding)
            for name, x in cut.items()
        }
        state, loss = function(state, given)
        losses.append(float(loss))
    return losses, [np.asarray(w) for w in jax.tree.leaves(state["weights"])]


@functools.cache
def alone(name: str) -> tuple[list[float], list[Any]]:
    return train(MODELS[name], Layout(mesh=Mesh(), micro_batch=BATCH))


def main() -> None:
    """Print one object per layout."""
    found: dict[str, Any] = {}
    for name, (of, layout) in CASES.items():
        (losses, weights), (got, other) = alone(of), train(MODELS[of], layout)
        apart = max(float(np.abs(a - b).max()) for a, b in zip(weights, other, strict=True))
        found[name] = {"one": losses, "losses": got, "apart": apart}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
