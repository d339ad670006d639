"""Runs under the command line's default precision, in a process with four CPU devices.

`python -m tests.unit.train.mixed FOLDER PART` prints what came of a part as one JSON document.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

# With it the settings of XLA.
from tests.unit.train.drive import LLAMA, Told, tokens

# ruff: isort: split
import jax
import jax.numpy as jnp
import numpy as np

import shardwise as sw
from shardwise.cli.verbs.training.workload import read_job
from shardwise.plan.training.rebuild import rebuild
from shardwise.runtime.devices import devices_for
from shardwise.runtime.training.programs import step_of
from shardwise.runtime.training.step import TrainStep
from shardwise.runtime.weights.safetensors import read_tensors
from shardwise.strategy.layout import Layout
from shardwise.strategy.mesh import Mesh
from shardwise.train.checkpoint import Checkpoints
from shardwise.train.guard import guarded_optimizer
from shardwise.train.portable import PortableState
from shardwise.train.recipe import Recipe
from shardwise.train.run import CheckpointOptions, _data_order, compile_step
from shardwise.train.state import load_batch, random_state
from tests.host import host
from tests.xla import share_programs

STEPS, HALF, FEW, LONG = 4, 2, 5, 50
BATCH = "8x32"
# The master is dealt out over copies, and waits in host memory.
STAGES = Layout(
    mesh=Mesh(pipe=2, data=2),
    micro_batch=1,
    n_microbatches=4,
    schedule="zb-v",
    zero=1,
    offload=("optimizer",),
)


def learned(model: sw.ModelConfig, folder: Path, data: str) -> dict[str, Any]:
    """Fifty steps in bf16 and in fp32, and what they leave of the first weights."""
    return {dtype: _steps(model, folder, data, dtype) for dtype in ("bf16", "fp32")}


def _steps(model: sw.ModelConfig, folder: Path, data: str, dtype: str) -> dict[str, Any]:
    """The losses; of each matrix the share of entries that a few steps do not move, and of each
    norm that all of them do not."""
    plan = sw.evaluate(
        model, host(folder, 1), read_job(BATCH, dtype=dtype), Layout(mesh=Mesh(), micro_batch=8)
    )
    made = _made(plan, Recipe(steps=LONG, rate=1e-3, schedule="constant"))
    (_, shapes), compiled = made.shapes(), compile_step(made)
    order, state = _data_order(plan, data, 0), random_state(made, 0)
    losses, first, unmoved = [], _weights(state), {}
    for number in range(LONG):
        state, told = compiled(state, load_batch(order, number, shapes, made.token_order))
        losses.append(float(told["loss"]))
        if number + 1 in (FEW, LONG):
            later = _weights(state)
            for name, x in first.items():
                if (number + 1 == FEW) == ("norm" not in name):
                    unmoved[name] = float(np.mean(x == later[name]))
    return {"losses": losses, "unmoved": unmoved}


def _weights(state: Any) -> dict[str, Any]:
    """The exact weights by their names."""
    leaves = jax.tree.leaves_with_path(state.get("master", state["weights"]))
    return {jax.tree_util.keystr(path): np.asarray(x) for path, x in leaves}


def _made(plan: sw.Plan, recipe: Recipe) -> TrainStep:
    case = rebuild(plan)
    return step_of(
        case, devices_for(case.system, plan.model.name), make_optimizer=guarded_optimizer(recipe)
    )


def resumed(model: sw.ModelConfig, folder: Path, data: str) -> dict[str, Any]:
    """A run in stages, broken off and gone on with, and what it holds."""
    recipe = Recipe(steps=STEPS, rate=0.01)
    plan = sw.evaluate(model, host(folder, STAGES.mesh.n_chips), read_job(BATCH), STAGES)
    at, out = folder / "stages", folder / "out"
    fresh, again = (
        CheckpointOptions(folder=str(at), every=HALF),
        CheckpointOptions(folder=str(at), resume=True),
    )
    whole = Told(plan, data, recipe, fresh, export=str(out))
    if whole.failed["kind"] != "nothing":
        raise RuntimeError(whole.failed["said"])
    through = _fingerprints(at)
    master, weight = _held(plan, at)
    shutil.rmtree(at / str(STEPS))
    later = Told(plan, data, recipe, again)
    exported = read_tensors(out)["model.norm.weight"]
    keys = json.loads((out / "config.json").read_text())
    return {
        "dtype": keys["torch_dtype"],
        "failed": later.failed,
        "masters": sum("master" in key for key in through),
        "equal": through == _fingerprints(at),
        "dtypes": [str(x.dtype) for x in (master, weight, exported)],
        "rounded": bool((master.astype(jnp.bfloat16) == weight).all()),
        "exact": bool((master == exported).all()) and bool((master != weight).any()),
    }


def _held(plan: sw.Plan, folder: Path) -> tuple[Any, Any]:
    """The last norm of a checkpoint: its master and its weight."""
    made = _made(plan, Recipe(steps=STEPS))
    saved = Checkpoints(str(folder), print)
    about = json.loads((folder / str(STEPS) / "about" / "metadata").read_text())
    state = saved.restore(PortableState(step=made).shapes(), about["order"])
    saved.close()
    assert state is not None
    master, weight = (state.state[name]["outer"]["final_norm"] for name in ("master", "weights"))
    return np.asarray(master), np.asarray(weight)


def _fingerprints(folder: Path) -> dict[str, int]:
    page = json.loads((folder / str(STEPS) / "about" / "metadata").read_text())
    found: dict[str, int] = page["fingerprints"]
    return found


PARTS = {"learned": learned, "resumed": resumed}


def main(folder: Path, part: str) -> None:
    """One part. Its runs of one plan share a compile."""
    share_programs()
    data, config = tokens(folder), folder / "llama" / "config.json"
    config.parent.mkdir()
    config.write_text(json.dumps(LLAMA | {"torch_dtype": "bfloat16"}))
    model = sw.model(str(config))
    print(json.dumps(PARTS[part](model, folder, data)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
