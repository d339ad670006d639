"""Steps whose collectives XLA's partitioner chooses, on eight devices, and the step of one.

`python -m tests.unit.runtime.parity_partitioned` prints, for each layout, the losses of three
steps, and how far from one device the first gradients are (over the largest entry of their array)
and the last weights, as one JSON document.
"""

from __future__ import annotations

import json
import os
from dataclasses import fields, replace
from typing import Any

from shardwise.models import ModelConfig
from shardwise.runtime.training.partitioned import PartitionedStep
from shardwise.strategy.layout import Layout
from shardwise.strategy.mesh import Mesh
from tests.unit.runtime import parity
from tests.unit.runtime.steps import Trained, apart, following, relative, step_on, trained

os.environ["XLA_FLAGS"] += (
    " --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)

# Two KV heads on four chips of `tensor`: pairs of chips have copies.
MODEL = ModelConfig.dense(
    n_layers=2, d_model=64, d_ff=128, n_heads=8, n_kv_heads=2, vocab=parity.VOCAB
)
LAYOUTS = {
    "zero 1, tensor, accumulated, norms again": Layout(
        mesh=Mesh(data=2, tensor=4),
        micro_batch=4,
        n_microbatches=2,
        zero=1,
        remat="selective",
        recomputed=("norms",),
    ),
    "fsdp, context, tensor, full remat": Layout(
        mesh=Mesh(fsdp=2, context=2, tensor=2),
        micro_batch=8,
        zero=3,
        remat="full",
        sequence_parallel=True,
    ),
}


def partitioned(layout: Layout) -> PartitionedStep:
    """The step that the compiler partitions."""
    made = replace(step_on(MODEL, parity.JOB, layout), make_optimizer=following)
    return PartitionedStep(**{f.name: getattr(made, f.name) for f in fields(made)})


def main() -> None:
    """Print one object per layout, one device under the name `one`."""
    one = trained(
        replace(step_on(MODEL, parity.JOB, parity.ONE), make_optimizer=following), parity.STEPS
    )

    def held(got: Trained) -> dict[str, Any]:
        return {
            "losses": got.losses,
            "gradients": relative(one.gradients, got.gradients),
            "apart": apart(one.weights, got.weights),
        }

    found = {n: held(trained(partitioned(of), parity.STEPS)) for n, of in LAYOUTS.items()}
    print(json.dumps({"one": held(one), **found}))


if __name__ == "__main__":
    main()
