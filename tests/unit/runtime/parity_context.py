"""Parity of layouts that cut sequences, or have more chips of `tensor` than KV heads.

`python -m tests.unit.runtime.scripts parity_context NAMES` prints, for each of these cases, the
losses of two steps on one device and the distance from them, as one JSON document.
"""

from __future__ import annotations

import functools
import json
import sys
from typing import Any

from shardwise.models import ModelConfig
from shardwise.strategy.layout import Layout
from shardwise.strategy.mesh import Mesh
from shardwise.vocabulary import LAYER
from shardwise.workload import Train
from tests.unit.runtime.distance import distance
from tests.unit.runtime.steps import Trained, keeping, step_on, trained

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
DOTS = {"recomputed": ("norms", "mla_up", "activation")}
# Two KV heads: `tensor` 4 and 8 hold copies of them, and so do 8 chips that exchange heads.
CASES: dict[str, tuple[str, Layout]] = {
    "gather, tensor, fsdp": ("two heads", layout(kind="gather", **MIXED)),
    "ring, tensor, fsdp, dots": ("two heads", layout(kind="ring", **MIXED, **DOTS)),
    "ulysses, tensor, fsdp, full remat": (
        "two heads",
        layout(kind="ulysses", **MIXED, recomputed=(LAYER,)),
    ),
    "ring 8, full remat": ("two heads", layout(Mesh(context=8), "ring", recomputed=(LAYER,))),
    "ring 4, zero 2, accumulated, chunks of the loss": (
        "two heads",
        layout(Mesh(context=4, data=2), "ring", zero=2, n_microbatches=2, loss_chunks=2),
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


def train(config: ModelConfig, layout: Layout) -> Trained:
    return trained(step_on(config, JOB, layout, keeping), STEPS)


@functools.cache
def alone(name: str) -> Trained:
    return train(MODELS[name], Layout(mesh=Mesh(), micro_batch=BATCH))


def main() -> None:
    """Print one object per layout."""
    found: dict[str, Any] = {}
    for name in sys.argv[1:]:
        config, layout = CASES[name]
        one = alone(config)
        found[name] = {"one": one.losses, **distance(one, train(MODELS[config], layout))}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
