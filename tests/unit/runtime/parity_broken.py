"""Steps with a mistake in the sums of their gradients, on eight devices, and the step of one.

`python -m tests.unit.runtime.scripts parity_broken` prints, for each mistake, the distance from one
device, as one JSON document.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import jax

from shardwise.runtime.training.gradient_sync import UpdatePartition
from shardwise.strategy.layout import Layout
from shardwise.strategy.mesh import Mesh
from tests.unit.runtime import parity
from tests.unit.runtime.distance import distance
from tests.unit.runtime.steps import Trained, keeping, step_on, trained

Array = jax.Array
STEPS = 2
MODEL = parity.ModelConfig.dense(n_layers=1, d_model=32, d_ff=64, n_heads=4, n_kv_heads=2, vocab=64)
LAYOUT = Layout(mesh=Mesh(data=2, tensor=2), micro_batch=8, sequence_parallel=True)
REDUCE = UpdatePartition.reduce


def once(deal: UpdatePartition, gradient: Array) -> Array:
    """No sum of what is summed at the end of a step: scales of norms."""
    return REDUCE(deal, gradient) if deal.in_backward else gradient


def mean(deal: UpdatePartition, gradient: Array) -> Array:
    """The mean over copies in place of their sum, which AdamW alone would hardly show."""
    return REDUCE(deal, gradient) / 2


MISTAKES: dict[str, Callable[[UpdatePartition, Array], Array]] = {
    "none": REDUCE,
    "norms not summed": once,
    "means for sums": mean,
}


def train(layout: Layout) -> Trained:
    return trained(step_on(MODEL, parity.JOB, layout, keeping), STEPS)


def main() -> None:
    """Print one object per mistake."""
    one = train(parity.ONE)
    found: dict[str, Any] = {}
    for name, reduce in MISTAKES.items():
        with patch.object(UpdatePartition, "reduce", reduce):
            found[name] = distance(one, train(LAYOUT))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
