"""Stage `families` of `bench/accelerator.py`: planned beside measured steps of published models.

Each model has some of its layers, a small vocabulary, and the widths that were published; what a
plan takes is known before: its rates are those of the catalog and of published runs.
"""

from __future__ import annotations

import time
from typing import Any

from accelerator_decode import engine, step_of, step_s
from accelerator_device import Device, Found, Skipped, report
from accelerator_profile import account
from accelerator_train import Run

import shardwise as sw
from shardwise.runtime.compile_cache import kept_programs
from shardwise.runtime.devices import local_devices

MODELS = {  # with as many layers as have each kind
    "deepseek-v2-lite": 3,
    "gpt-oss-20b": 4,
    "gemma3-4b": 6,
    "qwen3-30b-a3b": 2,
}
TINY = {"gemma3-4b": ",d_model=64,d_ff=128,n_heads=4,n_kv_heads=2,d_head=32"}
VOCAB = 16384
JOB = {False: (8, 4096), True: (2, 32)}  # sequences of a batch, tokens of each; tiny or not
DECODING = {False: (64, 2048), True: (2, 32)}  # sequences, tokens of each in the cache
STEPS = {False: 8, True: 2}
BUDGET_S = 400.0  # after which no program is begun


@kept_programs()
def families(device: Device) -> Found:
    """A row for each model and program."""
    rows: list[Found] = []
    end = time.perf_counter() + BUDGET_S
    for name, n_layers in MODELS.items():
        if device.tiny and name not in TINY:
            continue
        shape = TINY[name] if device.tiny else ""
        model = sw.model(f"{name},n_layers={n_layers},vocab={VOCAB}{shape}")
        for step, measured in (("train", trained), ("decode", decoded)):
            if time.perf_counter() > end:
                continue
            try:
                found = measured(model, device)
            except Skipped:
                raise
            except Exception as error:  # whatever a driver or a compiler says
                found = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:200]}
            rows.append({"name": f"{name}, {n_layers} layers, {step}", **found})
            report({"rows": rows}, f"families: {rows[-1]['name']}")
    if all("error" in one for one in rows):
        raise RuntimeError(f"no model ran: {rows[0]['error']}")
    return {"rows": rows}


def trained(model: sw.ModelConfig, device: Device) -> Found:
    """A training step in bf16."""
    batch, seq = JOB[device.tiny]
    plan = sw.plan(model, device.machine(measured=False), sw.Train(batch=batch, seq=seq))
    run = Run(plan, local_devices())
    found = run.timed(STEPS[device.tiny])
    name = f"family-{model.name.partition(',')[0]}"
    return compared(plan.step.expected, found) | {"account": account(run.step, device, name)}


def decoded(model: sw.ModelConfig, device: Device) -> Found:
    """A decode step of the engine's programs in bf16."""
    batch, context = DECODING[device.tiny]
    job = sw.Serve(context=context, batch=batch)
    plan = sw.plan(model, device.machine(measured=False), job)
    programs, *_ = engine(model, batch, context)
    step = step_of(programs, batch, context)
    found = {"step_s": step_s(step, STEPS[device.tiny])}
    name = f"family-{model.name.partition(',')[0]}-decode"
    return compared(plan.estimate.decode.step_s.expected, found) | {
        "account": account(step, device, name)
    }


def compared(planned_s: float, found: dict[str, Any]) -> Found:
    """Planned and measured seconds, and their ratio."""
    return {"planned_s": planned_s, "ratio": planned_s / found["step_s"], **found}
