"""The side of `bench/train.py` that is shardwise: a plan for this CPU, and its compiled step."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import shardwise as sw
from shardwise.measure.chip_file import write_chip
from shardwise.measure.machine import measure
from shardwise.plan.training.rebuild import rebuild
from shardwise.runtime.devices import devices_for
from shardwise.runtime.kernels import cpu
from shardwise.runtime.training.programs import step_of
from shardwise.train.guard import guarded_optimizer
from shardwise.train.recipe import Recipe
from shardwise.train.run import compile_step
from shardwise.train.state import random_state


def planned(about: dict[str, Any], folder: Path) -> sw.Plan:
    """The plan for this CPU as one device, measured first."""
    chip = folder / "host.toml"
    if not chip.exists():
        write_chip(measure(1), str(chip))
    job = sw.Train(batch=about["batch"], seq=about["seq"], **about["dtypes"])
    return sw.plan(model_of(about), sw.hardware(f"{chip}:1"), job)


def model_of(about: dict[str, Any]) -> sw.ModelConfig:
    """The Llama; as many KV heads as heads."""
    keys = ("n_layers", "d_model", "d_ff", "n_heads", "vocab")
    sizes = {key: about[key] for key in keys}
    return sw.ModelConfig.dense(name="a small Llama", n_kv_heads=about["n_heads"], **sizes)


class Trainer:
    """The step of the plan on one batch; writes its weights and the batch for the other side."""

    def __init__(self, about: dict[str, Any], folder: Path) -> None:
        plan = planned(about, folder)
        case = rebuild(plan)
        recipe = Recipe(steps=1000, rate=about["rate"], schedule="constant")
        made = step_of(
            case, devices_for(case.system, "it"), make_optimizer=guarded_optimizer(recipe)
        )
        self.compiled = compile_step(made)
        self.state = random_state(made, 0)
        _, shapes = made.shapes()
        random = np.random.default_rng(0)
        text = random.integers(0, about["vocab"], (about["batch"], about["seq"] + 1))
        cut = {"tokens": text[:, :-1].astype(np.int32), "targets": text[:, 1:].astype(np.int32)}
        self.batch = {
            name: jax.device_put(x.reshape(shapes[name].shape), shapes[name].sharding)
            for name, x in cut.items()
        }
        wide = self.state.get("master", self.state["weights"])
        arrays = {**wide["outer"], **wide["layers"][0]}
        np.savez(folder / "weights.npz", **{n: np.asarray(x) for n, x in arrays.items()})
        np.savez(folder / "batch.npz", **cut)

    def step(self) -> float:
        """One step; the loss before it."""
        self.state, told = self.compiled(self.state, self.batch)
        return float(told["loss"])


def peak(dtype: str, size: int, seconds: float) -> float:
    """FLOP/s of the best of some products [n,n] by [n,n], as the step takes them."""
    x = jnp.ones((size, size), jnp.bfloat16 if dtype == "bf16" else jnp.float32)
    product = jax.jit(lambda x: cpu.matmul_einsum("mi,io->mo", x, x, wide=True))
    product(x).block_until_ready()
    best, end = 1e9, time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        product(x).block_until_ready()
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best
