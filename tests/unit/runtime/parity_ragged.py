"""Steps of models with experts whose copies of tokens travel by count, on one device and on eight.

`python -m tests.unit.runtime.parity_ragged` prints, for each model and layout, the losses of three
steps and the largest distance of a weight from those of one device with places for all tokens, as
one JSON document. CPUs have no `ragged_all_to_all`: here each chip gathers all rows and takes its
own, and numbers that nobody may read are none.
"""

from __future__ import annotations

import json
import os
from typing import Any

from tests.unit.runtime import parity

os.environ["XLA_FLAGS"] += (
    " --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)

import jax
import jax.numpy as jnp
from jax import lax

from shardwise.runtime.experts import ragged
from shardwise.runtime.kernels import grouped_matmul
from tests.unit.runtime.expert_cases import COUNTED, COUNTED_RUNS, MODELS
from tests.unit.runtime.steps import apart

Array = jax.Array


def moved(
    x: Array,
    into: Array,
    begin: Array,
    sizes: Array,
    arrive: Array,
    received: Array,
    axis_name: Any,
) -> Array:
    """`lax.ragged_all_to_all`; no numbers where the two sides do not agree on what arrives."""
    n, me = lax.axis_size(axis_name), lax.axis_index(axis_name)
    all_x = lax.all_gather(x, axis_name)
    mine = [lax.all_gather(v, axis_name).reshape(n, n, -1)[:, me] for v in (begin, sizes, arrive)]
    rows = jnp.arange(len(into))
    for source in range(n):
        for first, size, at in zip(*(v[source] for v in mine), strict=True):
            here = (rows >= at) & (rows < at + size)
            own = all_x[source].at[first + rows - at].get(mode="clip")
            into = jnp.where(here[:, None], own, into)
    agreed = (mine[1].reshape(-1) == received).all()
    return jnp.where(agreed, into, jnp.nan)


def product(x: Array, w: Array, sizes: Array) -> Array:
    """`grouped_matmul.by_xla`, with no numbers in rows of no group."""
    nobody = jnp.arange(len(x)) >= sizes.sum()
    return jnp.where(nobody[:, None], jnp.nan, lax.ragged_dot(x, w, sizes))


def main() -> None:
    """Print one object per model and layout, one device with places under the name `places`."""
    lax.ragged_all_to_all, grouped_matmul.by_xla = moved, product
    found: dict[str, Any] = {}
    for name, layouts in COUNTED_RUNS.items():
        ragged.PLATFORMS = ()
        one = parity.train(parity.ONE, MODELS[name])
        found[name] = {"places": {"losses": one.losses}}
        ragged.PLATFORMS = ("cpu",)
        for words in layouts:
            got = parity.train(COUNTED[words], MODELS[name])
            found[name][words] = {"losses": got.losses, "apart": apart(one.weights, got.weights)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
