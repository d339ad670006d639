"""Steps whose activations and optimizer wait in host memory, on eight devices, and the step of one.

`python -m tests.unit.runtime.scripts parity_offload NAMES` prints, for each of these rows, the
losses of 20 steps and the distance from one device, how many arrays of all layers the forward pass
leaves in host memory, and how many of the state the step does, as one JSON document.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from typing import Any

import jax

from shardwise.runtime.training import host_offload
from shardwise.strategy.layout import Layout
from shardwise.strategy.mesh import Mesh
from shardwise.workload import Train
from tests.unit.runtime import parity
from tests.unit.runtime.distance import distance
from tests.unit.runtime.steps import keeping, step_on, trained

STEPS, LAYERS = 20, 4
MODEL = parity.ModelConfig.dense(
    n_layers=LAYERS, d_model=32, d_ff=64, n_heads=8, n_kv_heads=4, vocab=64
)
LAYOUT = Layout(
    mesh=Mesh(fsdp=4, tensor=2), micro_batch=2, n_microbatches=2, zero=3, sequence_parallel=True
)
ZERO = Layout(mesh=Mesh(data=8), micro_batch=2, zero=1)
STAGES = Layout(mesh=Mesh(pipe=2, fsdp=4), micro_batch=1, n_microbatches=4, zero=3, schedule="zb-v")
MASTER = replace(parity.JOB, weights="bf16", compute="bf16", master="fp32")
ROWS: dict[str, tuple[Train, Layout]] = {
    "nothing": (parity.JOB, LAYOUT),
    "activations": (parity.JOB, replace(LAYOUT, offload=("activations",))),
    "queries": (parity.JOB, replace(LAYOUT, offload=("layer_input", "q"))),
    "optimizer": (parity.JOB, replace(LAYOUT, offload=("optimizer",))),
    "both": (parity.JOB, replace(LAYOUT, offload=("activations", "optimizer"))),
    "master": (MASTER, LAYOUT),
    "both, master": (MASTER, replace(LAYOUT, offload=("activations", "optimizer"))),
    "optimizer, zero 1": (parity.JOB, replace(ZERO, offload=("optimizer",))),
    "optimizer, zb-v": (parity.JOB, replace(STAGES, offload=("optimizer",))),
}


def there(tree: Any) -> int:
    """How many arrays of a part of the state lie in host memory."""
    laid = [getattr(x, "sharding", x) for x in jax.tree.leaves(tree)]
    return sum(one.memory_kind == host_offload.KIND for one in laid)


def main() -> None:
    """Print one object per row, one device under the name `one`."""
    one = trained(step_on(MODEL, parity.JOB, parity.ONE, keeping), STEPS)
    found: dict[str, Any] = {}
    for name in sys.argv[1:]:
        job, layout = ROWS[name]
        made = step_on(MODEL, job, layout, keeping)
        traced = jax.jit(made.function(), donate_argnums=0).trace(*made.shapes())
        step = traced.lower().compile()
        (after, _), (before, _) = step.output_shardings, made.shapes()
        many = trained(made, STEPS, step)
        found[name] = distance(one, many) | {
            "losses": many.losses,
            "kept": len(re.findall(rf":f32<host>\[{LAYERS},", str(traced.jaxpr))),
            "before": [there(tree) for tree in before.values()],
            "after": [there(tree) for tree in after.values()],
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
