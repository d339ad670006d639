"""The same steps of training on one device and on eight.

`python -m tests.unit.runtime.scripts parity NAMES` prints, for each layout of these names, the
losses of three steps and the distance from one device, as one JSON document.
"""

from __future__ import annotations

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

STEPS, BATCH, SEQ, VOCAB = 3, 16, 32, 256
MODEL = ModelConfig.dense(n_layers=3, d_model=64, d_ff=128, n_heads=8, n_kv_heads=4, vocab=VOCAB)
JOB = Train(batch=BATCH, seq=SEQ, weights="fp32", compute="fp32", gradients="fp32", moments="fp32")
ONE = Layout(mesh=Mesh(), micro_batch=BATCH)
DENSE = {
    "zero 1": Layout(mesh=Mesh(data=8), micro_batch=1, n_microbatches=2, zero=1),
    "zero 2, tensor": Layout(
        mesh=Mesh(data=4, tensor=2),
        micro_batch=2,
        n_microbatches=2,
        zero=2,
        sequence_parallel=True,
    ),
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
    "fsdp, tensor, accumulated, full remat, chunks of the loss": Layout(
        mesh=Mesh(fsdp=4, tensor=2),
        micro_batch=2,
        n_microbatches=2,
        zero=3,
        recomputed=(LAYER,),
        loss_chunks=4,
    ),
    "fsdp, tensor, norms again": Layout(
        mesh=Mesh(fsdp=4, tensor=2),
        micro_batch=4,
        zero=3,
        recomputed=("norms",),
        sequence_parallel=True,
    ),
    "fsdp, tensor passes on, norms again": Layout(
        mesh=Mesh(fsdp=2, tensor=4),
        micro_batch=8,
        zero=3,
        recomputed=("norms",),
        sequence_parallel=True,
        overlap=("tp_comm",),
    ),
}


def _piped(schedule: str, m: int, *, virtual: int = 1, **sizes: Any) -> Layout:
    mesh = {k: v for k, v in sizes.items() if k in ("data", "fsdp", "tensor", "pipe")}
    form = {k: v for k, v in sizes.items() if k not in mesh}
    shards = mesh.get("data", 1) * mesh.get("fsdp", 1)
    return Layout(
        mesh=Mesh(**mesh),
        micro_batch=BATCH // shards // m,
        n_microbatches=m,
        schedule=schedule,
        virtual=virtual,
        **form,
    )


PIPELINE = {
    "interleaved, fsdp": _piped("interleaved", 4, pipe=4, virtual=2, fsdp=2, zero=3),
    "zb-v, tensor": _piped("zb-v", 4, pipe=2, tensor=4),
    "1f1b, fsdp, tensor, chunks of the loss": _piped(
        "1f1b",
        4,
        pipe=2,
        fsdp=2,
        tensor=2,
        zero=3,
        sequence_parallel=True,
        recomputed=(LAYER,),
        loss_chunks=16,
    ),
    "zb-h1, zero 2, tensor": _piped("zb-h1", 4, pipe=2, data=2, tensor=2, zero=2),
}
LAYOUTS = DENSE | PIPELINE


def train(layout: Layout, model: ModelConfig = MODEL) -> Trained:
    """Some steps; experts have room for every token."""
    return trained(step_on(model, JOB, layout, keeping), STEPS)


def main() -> None:
    """Print one object per layout, one device under the name `one`."""
    one = train(ONE)
    found: dict[str, Any] = {"one": {"losses": one.losses}}
    for name in sys.argv[1:]:
        found[name] = distance(one, train(LAYOUTS[name]))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
