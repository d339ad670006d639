"""Traces of products on four devices: `python -m tests.unit.compare.sharded_programs FOLDER`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

N_STEPS = 5
# Name -> how the rows are constrained to be sharded; they come sharded over `data`.
PROGRAMS = {"rows": P("data"), "again": P("data"), "whole": P()}
# The same where the scope communicates already: it sums its rows.
SUMMED = {"summed rows": P("data"), "summed whole": P()}


def record(folder: Path, step: Callable[[], jax.Array], stall_s: float = 0.0) -> None:
    """Trace a few runs of a step, which has run once before, each after a pause of the host."""
    step().block_until_ready()
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with jax.profiler.trace(str(folder), profiler_options=options):
        for _ in range(N_STEPS):
            time.sleep(stall_s)
            step().block_until_ready()


def main(folder: Path) -> None:
    """Trace every program into a folder of its name."""
    mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))
    weight = jax.device_put(jnp.ones((512, 512)), NamedSharding(mesh, P()))
    x = jax.device_put(jnp.ones((1024, 512)), NamedSharding(mesh, P("data")))
    for name, spec in PROGRAMS.items():
        wanted = NamedSharding(mesh, spec)

        @jax.jit
        def step(x: jax.Array, weight: jax.Array, wanted: NamedSharding = wanted) -> jax.Array:
            with jax.named_scope("mlp.up"):
                return jnp.tanh(jax.lax.with_sharding_constraint(x, wanted) @ weight)

        record(folder / name, lambda step=step: step(x, weight))  # type: ignore[misc]
    for name, spec in SUMMED.items():
        wanted = NamedSharding(mesh, spec)

        @jax.jit
        def summed(x: jax.Array, weight: jax.Array, wanted: NamedSharding = wanted) -> jax.Array:
            with jax.named_scope("mlp.up"):
                total = x.sum(0)
                return jnp.tanh(jax.lax.with_sharding_constraint(x, wanted) @ weight) + total

        record(folder / name, lambda step=summed: step(x, weight))  # type: ignore[misc]


if __name__ == "__main__":
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
    main(Path(sys.argv[1]))
