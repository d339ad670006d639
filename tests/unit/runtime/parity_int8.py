"""Steps whose sums of gradients travel in int8, beside steps with exact sums.

`python -m tests.unit.runtime.scripts parity_int8 NAMES` prints, for each of these layouts, the
losses of twenty steps of SGD with exact sums, with sums in int8 and with sums in int8 that forget
what they have lost, the distance of the last weights from those of exact sums, and the dtypes that
the program exchanges between chips, as one JSON document.
"""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from typing import Any

import jax
import numpy as np
import optax

from shardwise.strategy.layout import Layout
from shardwise.strategy.mesh import Mesh
from tests.unit.runtime import parity
from tests.unit.runtime.steps import Trained, compiled, step_on, trained

STEPS, RATE = 20, 0.5
MODEL = parity.ModelConfig.dense(n_layers=2, d_model=32, d_ff=64, n_heads=4, n_kv_heads=2, vocab=64)
LAYOUTS = {
    # Summed in the backward pass, and by all copies; at the end of the step, dealt out.
    "data, fsdp": Layout(mesh=Mesh(data=2, fsdp=2), micro_batch=4, zero=3),
    "zero 1": Layout(mesh=Mesh(data=4), micro_batch=2, n_microbatches=2, zero=1),
}


def forgetting(step: Any) -> Any:
    """The step without what sums before have lost."""
    nothing = lambda lost: jax.tree.map(jax.numpy.zeros_like, lost)
    return lambda state, batch: step(state | {"lost": nothing(state["lost"])}, batch)


def far(one: Trained, other: Trained) -> float:
    """The distance of all weights, over their size."""
    pairs = list(zip(one.weights, other.weights, strict=True))
    apart = sum(float(np.square(a - b).sum()) for a, b in pairs)
    return float((apart / sum(float(np.square(a).sum()) for a, _ in pairs)) ** 0.5)


def main() -> None:
    """Print one object per layout."""
    found: dict[str, Any] = {}
    for name in sys.argv[1:]:
        layout = LAYOUTS[name]
        exact, made = (
            dataclasses.replace(
                step_on(MODEL, job, layout), make_optimizer=lambda _: optax.sgd(RATE)
            )
            for job in (parity.JOB, dataclasses.replace(parity.JOB, reduce="int8"))
        )
        step = compiled(made)
        runs = {
            "exact": trained(exact, STEPS),
            "int8": trained(made, STEPS, step),
            "forgetting": trained(made, STEPS, forgetting(step)),
        }
        sent = re.findall(r"= \(?(\w+)\[[^=]* all-to-all\(", step.as_text())
        found[name] = {
            "losses": {word: run.losses for word, run in runs.items()},
            "far": {word: far(runs["exact"], run) for word, run in runs.items()},
            "exchanged": sorted(set(sent)),
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
