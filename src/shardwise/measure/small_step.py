"""What a training step takes beside the work that was measured: each step, and each layer.

Steps of two narrow models of different depth are run as training runs them. What they take beyond
their plan at the rates found so far belongs to steps and layers, whatever their sizes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from shardwise.estimate.calibration import MEASURED
from shardwise.estimate.training.framework_profiles import profile_of
from shardwise.hardware import parse_system
from shardwise.measure.all_devices import AllDevices, random_numbers
from shardwise.measure.chip_file import write_chip
from shardwise.measure.rates import MeasuredRates
from shardwise.measure.timing import Call, Part
from shardwise.models import ModelConfig
from shardwise.runtime.training.programs import step_of
from shardwise.search.given import NOTHING_FIXED
from shardwise.search.training.problem import Case
from shardwise.strategy.layout import Layout
from shardwise.strategy.mesh import Mesh, place
from shardwise.train.guard import guarded_optimizer
from shardwise.train.recipe import Recipe
from shardwise.train.run import compile_step
from shardwise.workload import Train

DEPTHS = (1, 3)
WIDTH, SEQ = 64, 64
SHORTEST_S = 1e-6
# A machine on which a step is compiled before its rates are known: the program has none of them.
NOMINAL = {
    "hbm.capacity": 1e12,
    "hbm.bandwidth": 1e12,
    "peak.fp32": 1e12,
    "node.egress": 1e9,
    "node.latency": 1e-6,
}


def measure_steps(devices: AllDevices) -> Part[list[float]]:
    """Seconds of steps of narrow models of `DEPTHS`, with what the host moves for each."""
    nominal = MeasuredRates(
        n_devices=devices.n, kind=devices.platform, figures=NOMINAL | {"node.gpus": devices.n}
    )
    cases = [narrow_case(nominal, depth) for depth in DEPTHS]
    return (yield [partial(prepared_step, case, devices) for case in cases])


def overheads(rates: MeasuredRates, steps_s: Sequence[float]) -> dict[str, float]:
    """Seconds of a step and of a layer beyond the measured work."""
    beyond_s = [
        step_s - planned_s(narrow_case(rates, depth))
        for step_s, depth in zip(steps_s, DEPTHS, strict=True)
    ]
    layer_s = max((beyond_s[1] - beyond_s[0]) / (DEPTHS[1] - DEPTHS[0]), SHORTEST_S)
    step_s = max(beyond_s[0] - DEPTHS[0] * layer_s, SHORTEST_S)
    return {"training.step": step_s, "training.layer": layer_s}


def planned_s(case: Case) -> float:
    """Seconds of the step at the rates found so far."""
    return float(case.step().time(case.cal, profile_of(case.job, case.system.chip)).step_s)


def narrow_case(rates: MeasuredRates, depth: int) -> Case:
    """A narrow model on the measured machine; each device has one sequence."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "host.toml"
        write_chip(replace(rates, device_kind=""), str(path))  # in a row, whatever the chip
        system = parse_system(f"{path}:{rates.n_devices}")
    model = ModelConfig.dense(
        n_layers=depth, d_model=WIDTH, d_ff=WIDTH, n_heads=2, n_kv_heads=1, vocab=WIDTH
    )
    job = Train(batch=rates.n_devices, seq=SEQ, weights="fp32", compute="fp32")
    layout = Layout(mesh=Mesh(data=rates.n_devices), micro_batch=1, n_microbatches=1)
    return Case(
        model=model,
        system=system,
        job=job,
        layout=layout,
        placement=next(iter(place(system, layout.sizes))),
        cal=MEASURED,
        fixed=NOTHING_FIXED,
    )


def prepared_step(case: Case, devices: AllDevices) -> Call:
    """Compile a training step; return a call of it with the arrays that the host moves."""
    recipe = Recipe(steps=1000, schedule="constant")
    grid = np.array(devices.devices, dtype=object).reshape(1, -1)
    train_step = step_of(case, grid, make_optimizer=guarded_optimizer(recipe))
    compiled = compile_step(train_step)
    states, shapes = train_step.shapes()
    # Numbers of NumPy: what draws random weights would have to be compiled, too.
    state = jax.tree.map(lambda s: jax.device_put(np.zeros(s.shape, s.dtype), s.sharding), states)
    state["weights"] = jax.tree.map(
        lambda w: jax.device_put(random_numbers(w.shape, w.dtype) / WIDTH**0.5, w.sharding),
        states["weights"],
    )
    tokens = {name: np.zeros(shape.shape, np.int32) for name, shape in shapes.items()}

    def step() -> Any:
        nonlocal state
        batch = {name: jax.device_put(x, shapes[name].sharding) for name, x in tokens.items()}
        state, scalars = compiled(state, batch)
        return [float(x) for x in scalars.values()]

    return step
