"""Steps whose collectives XLA's partitioner chooses, on eight devices, and the step of one.

`python -m tests.unit.runtime.scripts parity_partitioned NAMES` prints, for each of these layouts,
the distance of three steps from one device, whose losses are under `one`, as one JSON document.
"""

from __future__ import annotations

import json
import sys
from dataclasses import fields
from typing import Any

from shardwise.models import ModelConfig
from shardwise.runtime.training.partitioned import PartitionedStep
from shardwise.strategy.layout import Layout
from shardwise.strategy.mesh import Mesh
from shardwise.vocabulary import LAYER
from tests.unit.runtime import parity
from tests.unit.runtime.distance import distance
from tests.unit.runtime.steps import keeping, step_on, trained

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
        recomputed=("norms",),
    ),
    "fsdp, context, tensor, full remat": Layout(
        mesh=Mesh(fsdp=2, context=2, tensor=2),
        micro_batch=8,
        zero=3,
        recomputed=(LAYER,),
        sequence_parallel=True,
    ),
}


def partitioned(layout: Layout) -> PartitionedStep:
    """The step that the compiler partitions."""
    made = step_on(MODEL, parity.JOB, layout, keeping)
    return PartitionedStep(**{f.name: getattr(made, f.name) for f in fields(made)})


def main() -> None:
    """Print one object per layout, one device under the name `one`."""
    one = parity.train(parity.ONE, MODEL)
    found: dict[str, Any] = {"one": {"losses": one.losses}}
    for name in sys.argv[1:]:
        found[name] = distance(one, trained(partitioned(LAYOUTS[name]), parity.STEPS))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
