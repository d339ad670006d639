"""Steps with each optimizer that reads more than it updates, on one device and on eight.

`python -m tests.unit.runtime.parity_optimizers` prints, for each optimizer and layout, the losses
of five steps, the largest distance of a weight from those of one device, and how far the weights
went from where they began, as one JSON document.
"""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any

from shardwise.runtime.training.optimizers import WHOLE_ARRAY
from shardwise.strategy.layout import Layout
from shardwise.strategy.mesh import Mesh
from tests.unit.runtime import parity
from tests.unit.runtime.steps import apart, step_on, trained

os.environ["XLA_FLAGS"] += (
    " --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)

# Adafactor keeps factors of matrices with 128 rows and columns or more.
MODEL = parity.ModelConfig.dense(
    n_layers=2, d_model=128, d_ff=256, n_heads=8, n_kv_heads=4, vocab=parity.VOCAB
)
LAYOUTS = {
    "fsdp, tensor": Layout(
        mesh=Mesh(fsdp=4, tensor=2), micro_batch=4, zero=3, sequence_parallel=True
    ),
    "zero 1": Layout(mesh=Mesh(data=8), micro_batch=2, zero=1),
}


def main() -> None:
    """Print one object per optimizer and layout, one device under the name `one`."""
    found: dict[str, Any] = {}
    for name in WHOLE_ARRAY:
        job = dataclasses.replace(parity.JOB, optimizer=name)
        start = trained(step_on(MODEL, job, parity.ONE), 0)
        one = trained(step_on(MODEL, job, parity.ONE), 5)
        far = apart(start.weights, one.weights)
        found[name] = {"one": {"losses": one.losses, "apart": far}}
        for words, layout in LAYOUTS.items():
            got = trained(step_on(MODEL, job, layout), 5)
            near = apart(one.weights, got.weights)
            found[name][words] = {"losses": got.losses, "apart": near}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
