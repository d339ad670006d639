"""Steps with each optimizer that reads more than it updates, on one device and on eight.

`python -m tests.unit.runtime.scripts parity_optimizers NAMES` prints, for each optimizer and these
layouts, the losses of five steps, the largest distance of a weight from those of one device, and
how far the weights went from where they began, as one JSON document.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any

import numpy as np

from shardwise.runtime.training.optimizers import WHOLE_ARRAY
from shardwise.strategy.layout import Layout
from shardwise.strategy.mesh import Mesh
from tests.unit.runtime import parity
from tests.unit.runtime.distance import Arrays
from tests.unit.runtime.steps import compiled, step_on, trained

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


def apart(one: Arrays, other: Arrays) -> float:
    """The largest difference of two entries."""
    return float(np.max([np.abs(a - b).max() for a, b in zip(one, other, strict=True)]))


def main() -> None:
    """Print one object per optimizer and layout, one device under the name `one`."""
    found: dict[str, Any] = {}
    for name in WHOLE_ARRAY:
        job = dataclasses.replace(parity.JOB, optimizer=name)
        made = step_on(MODEL, job, parity.ONE)
        step = compiled(made)
        start = trained(made, 0, step)
        one = trained(made, 5, step)
        found[name] = {"one": {"losses": one.losses, "apart": apart(start.weights, one.weights)}}
        for words in sys.argv[1:]:
            many = trained(step_on(MODEL, job, LAYOUTS[words]), 5)
            found[name][words] = {
                "losses": many.losses,
                "apart": apart(one.weights, many.weights),
            }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
