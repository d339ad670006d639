"""The same steps of training on one device and on eight, in a process with eight CPU devices.

`python -m tests.unit.runtime.parity` prints, for each layout, the losses of three steps and the
largest distance of a weight from those of one device, as one JSON document.
"""

from __future__ import annotations

import json
import os
from typing import Any

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np

from shardwise.models import ModelConfig
from shardwise.runtime.mesh import role_mesh
from shardwise.runtime.planned import factored
from shardwise.runtime.step import TrainStep
from shardwise.runtime.table import Table
from shardwise.runtime.weights import initialised
from shardwise.strategy.layout import Layout, rules_of
from shardwise.strategy.mesh import Mesh
from shardwise.workload import Train

STEPS, BATCH, SEQ, VOCAB = 3, 16, 32, 256
MODEL = ModelConfig.dense(n_layers=3, d_model=64, d_ff=128, n_heads=8, n_kv_heads=4, vocab=VOCAB)
JOB = Train(batch=BATCH, seq=SEQ, weights="fp32", compute="fp32", gradients="fp32", moments="fp32")
ONE = Layout(mesh=Mesh(), micro_batch=BATCH)
EIGHT = {
    "data": Layout(mesh=Mesh(data=8), micro_batch=2),
    "zero 1": Layout(mesh=Mesh(data=8), micro_batch=1, n_microbatches=2, zero=1),
    "zero 2, tensor": Layout(
        mesh=Mesh(data=4, tensor=2),
        micro_batch=2,
        n_microbatches=2,
        zero=2,
        sequence_parallel=True,
    ),
    "fsdp": Layout(mesh=Mesh(fsdp=8), micro_batch=2, zero=3),
    "tensor": Layout(mesh=Mesh(tensor=4), micro_batch=16),
    "tensor, sequence": Layout(mesh=Mesh(tensor=4), micro_batch=16, sequence_parallel=True),
    "data, fsdp, tensor": Layout(
        mesh=Mesh(data=2, fsdp=2, tensor=2), micro_batch=4, zero=3, sequence_parallel=True
    ),
    "one sequence a chip": Layout(
        mesh=Mesh(fsdp=4, tensor=2),
        micro_batch=1,
        n_microbatches=4,
        zero=3,
        sequence_parallel=True,
    ),
    "fsdp, tensor, accumulated, full remat": Layout(
        mesh=Mesh(fsdp=4, tensor=2), micro_batch=2, n_microbatches=2, zero=3, remat="full"
    ),
    "fsdp, tensor, norms again": Layout(
        mesh=Mesh(fsdp=4, tensor=2),
        micro_batch=4,
        zero=3,
        remat="selective",
        recomputed=("norms",),
        sequence_parallel=True,
    ),
}


def train(layout: Layout) -> tuple[list[float], list[Any]]:
    """(losses, weights after them)."""
    devices = np.array(jax.devices()[: layout.mesh.n_chips])
    on = role_mesh(layout.sizes, devices, factored(layout))
    table = Table(rules=rules_of(layout), on=on)
    step = TrainStep(config=MODEL, job=JOB, layout=layout, table=table)
    shapes, batch = step.shapes()
    weights = initialised(step.infos, jax.random.key(0), jnp.float32)
    state = {"weights": weights, "moments": step.optimizer.init(weights)}
    state = jax.tree.map(lambda x, s: jax.device_put(x, s.sharding), state, shapes)
    function, random = jax.jit(step.function()), np.random.default_rng(0)
    losses = []
    for _ in range(STEPS):
        text = random.integers(0, VOCAB, (BATCH, SEQ + 1)).astype(np.int32)
        cut = {"tokens": text[:, :-1], "targets": text[:, 1:]}
        given = {
            name: jax.device_put(x.reshape(batch[name].shape), batch[name].sharding)
            for name, x in cut.items()
        }
        state, loss = function(state, given)
        losses.append(float(loss))
    return losses, [np.asarray(w) for w in jax.tree.leaves(state["weights"])]


def main() -> None:
    """Print one object per layout, one device under the name `one`."""
    losses, weights = train(ONE)
    found: dict[str, Any] = {"one": {"losses": losses, "apart": 0.0}}
    for name, layout in EIGHT.items():
        got, other = train(layout)
        apart = max(float(np.abs(a - b).max()) for a, b in zip(weights, other, strict=True))
        found[name] = {"losses": got, "apart": apart}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
