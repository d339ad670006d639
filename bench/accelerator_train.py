"""Stages `train-1b` and `train-8b` of `bench/accelerator.py`: MFU of a plan's step, in bf16."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from accelerator_device import Device, Found, grid
from accelerator_profile import account

import shardwise as sw
from shardwise.errors import DoesNotFit
from shardwise.formulas.flops import mfu
from shardwise.hardware import System
from shardwise.models.weights import model_weights
from shardwise.plan.training.rebuild import rebuild
from shardwise.runtime.compile_cache import kept_programs
from shardwise.runtime.devices import local_devices
from shardwise.runtime.training.programs import step_of
from shardwise.train.device_memory import program_bytes, require_memory
from shardwise.train.guard import guarded_optimizer
from shardwise.train.recipe import Recipe
from shardwise.train.run import compile_step
from shardwise.train.state import random_state

STEPS, WARMUP = 20, 3  # steps that are timed, after some that are not
SIZES = {
    "1b": {
        "n_layers": 16,
        "d_model": 2048,
        "d_ff": 8192,
        "n_heads": 16,
        "n_kv_heads": 16,
        "vocab": 50304,
    },
    "8b": {
        "n_layers": 32,
        "d_model": 4096,
        "d_ff": 14336,
        "n_heads": 32,
        "n_kv_heads": 8,
        "vocab": 128256,
    },
    "tiny": {
        "n_layers": 2,
        "d_model": 64,
        "d_ff": 128,
        "n_heads": 4,
        "n_kv_heads": 4,
        "vocab": 256,
    },
}
JOBS = {"1b": (16, 2048), "8b": (8, 4096), "tiny": (4, 32)}  # sequences of a batch, tokens of each


class Run:
    """The compiled step of a plan on random tokens.

    Args:
        devices: at least those of the plan.
    """

    def __init__(self, plan: sw.Plan, devices: list[Any]) -> None:
        case = rebuild(plan)
        recipe = Recipe(steps=1000, schedule="constant")
        made = step_of(case, grid(case.system, devices), make_optimizer=guarded_optimizer(recipe))
        start = time.perf_counter()
        self._step = compile_step(made)
        self.compile_s = time.perf_counter() - start
        self.n_bytes = program_bytes(self._step)
        require_memory(self._step, devices[0], plan.estimate.memory_bytes_per_chip.total)
        self._state = random_state(made, 0)
        _, shapes = made.shapes()
        random = np.random.default_rng(0)
        text = random.integers(0, case.model.vocab, (case.job.batch, case.job.seq + 1))
        cut = {"tokens": text[:, :-1].astype(np.int32), "targets": text[:, 1:].astype(np.int32)}
        self._batch = {
            name: jax.device_put(x.reshape(shapes[name].shape), shapes[name].sharding)
            for name, x in cut.items()
        }

    def step(self) -> tuple[float, float]:
        """One step: its loss and the norm of its gradients."""
        self._state, told = self._step(self._state, self._batch)
        return float(told["loss"]), float(told["norm"])

    def timed(self, steps: int) -> Found:
        """As `timed_steps`, with the seconds of the compile."""
        return {**timed_steps(lambda: self.step()[0], steps), "compile_s": self.compile_s}


def timed(plan: sw.Plan, devices: list[Any], steps: int = STEPS) -> Found:
    """As `timed_steps`, of the step of a plan."""
    return Run(plan, devices).timed(steps)


def timed_steps(
    step: Callable[[], float], steps: int = STEPS, wait: Callable[[], None] = lambda: None
) -> Found:
    """Seconds of a step: median, least and most; the loss before the first and the last step.

    Args:
        step: runs one and returns its loss.
        wait: for what the device still does before a step begins.
    """
    first = step()
    for _ in range(WARMUP - 1):
        step()
    seconds = []
    for _ in range(steps):
        wait()
        start = time.perf_counter()
        loss = step()
        seconds.append(time.perf_counter() - start)
    return {
        "step_s": statistics.median(seconds),
        "step_s_spread": [min(seconds), max(seconds)],
        "losses": [first, loss],
    }


def model_of(size: str, n_layers: int | None = None) -> sw.ModelConfig:
    """The Llama of a size, with fewer layers if told."""
    sizes = SIZES[size]
    if n_layers is not None:
        sizes = sizes | {"n_layers": n_layers}
    return sw.ModelConfig.dense(name=f"llama-{size}", **sizes)


def parameters(model: sw.ModelConfig) -> int:
    """Number of weights."""
    return round(sum(n * weight.size for weight, n in model_weights(model)))


def fitting_plan(size: str, system: System, most: int | None = None) -> tuple[sw.Plan, int]:
    """The plan with the most layers that fit, and their number.

    Args:
        most: layers; by default those of the size.

    Raises:
        DoesNotFit: a single layer does not.
    """
    batch, seq = JOBS[size]
    job = sw.Train(batch=batch, seq=seq)
    n_layers = most or SIZES[size]["n_layers"]
    while True:
        try:
            return sw.plan(model_of(size, n_layers), system, job), n_layers
        except DoesNotFit:
            if n_layers == 1:
                raise
            n_layers -= 1


def fitting_run(size: str, system: System, devices: list[Any]) -> tuple[Run, sw.Plan, int]:
    """The step with the most layers whose plan and whose program fit, its plan, and their number.

    Raises:
        DoesNotFit: a single layer does not.
    """
    n_layers = None
    while True:
        plan, n_layers = fitting_plan(size, system, n_layers)
        try:
            return Run(plan, devices), plan, n_layers
        except DoesNotFit:
            if n_layers == 1:
                raise
            n_layers -= 1


def size_of(size: str, device: Device) -> str:
    """The size that runs on a device: `tiny` for all where stages are tiny."""
    return "tiny" if device.tiny else size


def planned_flops(plan: sw.Plan) -> float:
    """FLOPs of a step that MFU counts."""
    return sum(operation.flops for operation in plan.operations)


@kept_programs()
def train(size: str, device: Device) -> Found:
    """MFU of a size on one chip at the catalog's peak."""
    size = size_of(size, device)
    system = device.machine(measured=False)
    devices = local_devices()
    run, plan, n_layers = fitting_run(size, system, devices)
    found = run.timed(STEPS)
    memory = devices[0].memory_stats() or {}
    flops, peak = planned_flops(plan), system.chip.peak_flops_per_s["bf16"]
    return {
        "model": plan.model.name,
        "n_layers": n_layers,
        "of_layers": SIZES[size]["n_layers"],
        "n_parameters": parameters(model_of(size, n_layers)),
        "batch": plan.workload.batch,
        "seq": plan.workload.seq,
        "remat": plan.strategy.remat,
        "micro_batch": plan.strategy.micro_batch,
        "n_microbatches": plan.strategy.n_microbatches,
        "planned_s": plan.step.expected,
        "flops": flops,
        "peak_flops_per_s": peak,
        "mfu": mfu(flops, found["step_s"], 1, peak),
        "tokens_per_s": plan.workload.tokens_per_step / found["step_s"],
        "program_bytes": run.n_bytes,
        "peak_memory_bytes": memory.get("peak_bytes_in_use"),
        "planned_memory_bytes": plan.estimate.memory_bytes_per_chip.total,
        "account": account(run.step, device, f"train-{size}"),
        **found,
    }
