"""Steps of models with experts whose copies of tokens travel by count, on one device and on eight.

`python -m tests.unit.runtime.scripts parity_ragged NAMES` prints, for each of these runs, the
losses of three steps on one device with places for all tokens and the distance from them, as one
JSON document. CPUs have no `ragged_all_to_all`: here each chip gathers all rows and takes its own,
and numbers that nobody may read are none.
"""

from __future__ import annotations

import functools
import json
import sys
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from shardwise.runtime.experts import ragged
from shardwise.runtime.kernels import grouped_matmul
from tests.unit.runtime import parity
from tests.unit.runtime.distance import distance
from tests.unit.runtime.expert_cases import COUNTED, COUNTED_RUNS, MODELS
from tests.unit.runtime.steps import Trained

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


@functools.cache
def alone(model: str) -> Trained:
    ragged.PLATFORMS = ()
    return parity.train(parity.ONE, MODELS[model])


def main() -> None:
    """Print one object per model and layout."""
    lax.ragged_all_to_all, grouped_matmul.by_xla = moved, product
    found: dict[str, Any] = {}
    for name in sys.argv[1:]:
        model, layout = COUNTED_RUNS[name]
        one = alone(model)
        ragged.PLATFORMS = ("cpu",)
        many = parity.train(COUNTED[layout], MODELS[model])
        found[name] = {"one": one.losses, **distance(one, many)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
