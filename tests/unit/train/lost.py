"""What sums in int8 have lost, saved and taken back, in a process with four CPU devices.

`python -m tests.unit.train.lost FOLDER` prints what came of it as one JSON document.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

import shardwise as sw
from shardwise.plan.training.rebuild import rebuild
from shardwise.runtime.devices import devices_for
from shardwise.runtime.training.programs import step_of
from shardwise.runtime.training.step import TrainStep
from shardwise.strategy.layout import Layout
from shardwise.strategy.mesh import Mesh
from shardwise.train.checkpoint import Checkpoints, array_types
from shardwise.train.guard import guarded_optimizer
from shardwise.train.portable import PortableState
from shardwise.train.recipe import Recipe
from shardwise.train.run import compile_step
from shardwise.train.state import random_state
from tests.host import host
from tests.unit.train.drive import JOB, MODEL

LAYOUTS = {
    "two copies": Layout(mesh=Mesh(data=2, fsdp=2), micro_batch=2, zero=3),
    "stages": Layout(
        mesh=Mesh(pipe=2, data=2), micro_batch=1, n_microbatches=4, schedule="zb-v", zero=1
    ),
    "four copies": Layout(mesh=Mesh(data=4), micro_batch=2, zero=1),
}
IDENTITY = {"seed": 0}


def step(folder: Path, name: str) -> TrainStep:
    """The step of a layout."""
    layout = LAYOUTS[name]
    job = dataclasses.replace(JOB, reduce="int8")
    plan = sw.evaluate(MODEL, host(folder, layout.mesh.n_chips), job, layout)
    case = rebuild(plan)
    devices = devices_for(case.system, plan.model.name)
    return step_of(case, devices, make_optimizer=guarded_optimizer(Recipe(steps=2)))


def some(made: TrainStep) -> Any:
    """A state with random numbers for what was lost."""
    state, random = random_state(made, 0), np.random.default_rng(0)
    state["lost"] = {
        name: jax.device_put(random.normal(size=x.shape).astype(x.dtype), x.sharding)
        for name, x in state["lost"].items()
    }
    return state


def same(one: Any, other: Any) -> bool:
    return all(
        bool((np.asarray(a) == np.asarray(b)).all())
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    )


def saved(folder: Path) -> dict[str, Any]:
    """A state of two copies on each layout."""
    made = {name: step(folder, name) for name in LAYOUTS}
    first = PortableState(step=made["two copies"])
    state = some(made["two copies"])
    checkpoints = Checkpoints(str(folder / "saved"), print)
    whole = first.to_portable(state)
    checkpoints.save(1, whole, {"order": IDENTITY, "arrays": array_types(whole)})
    checkpoints.wait()
    found: dict[str, Any] = {}
    for name, one in made.items():
        portable = PortableState(step=one)
        restored = checkpoints.restore(portable.shapes(), IDENTITY)
        if restored is None:
            raise ValueError("nothing was saved")
        back = portable.to_step(restored.state)
        there = portable.to_portable(back)
        found[name] = {
            "weights": same(there["weights"], whole["weights"]),
            "lost": same(there["lost"], whole["lost"]) if not restored.residuals_reset else None,
            "forgot": restored.residuals_reset,
            "zeros": not any(np.asarray(x).any() for x in back["lost"].values()),
            "moved": {k: list(x.shape) for k, x in back["lost"].items()}["layers/0/w_up"],
        }
    checkpoints.close()
    return found


def bad_step(folder: Path) -> dict[str, Any]:
    """A step whose gradients are no numbers, after one that is good."""
    made = step(folder, "two copies")
    run, state = compile_step(made), random_state(made, 0)
    _, shapes = made.shapes()
    batch = {k: jax.device_put(np.ones(x.shape, x.dtype), x.sharding) for k, x in shapes.items()}
    state, _ = run(state, batch)
    before = {name: np.asarray(x) for name, x in state["lost"].items()}
    broken = jax.tree.map(lambda x: x * np.nan, state["weights"])
    state, told = run(state | {"weights": broken}, batch)
    return {
        "loses": all(x.any() for x in before.values()),
        "bad": int(told["bad"]),
        "kept": same(before, state["lost"]),
    }


def main() -> None:
    folder = Path(sys.argv[1])
    print(json.dumps({"saved": saved(folder), "bad": bad_step(folder)}))


if __name__ == "__main__":
    main()
