"""Stage `parity` of `bench/accelerator.py`: training steps in fp32 here and on this machine's CPU.

Both sides compile the step of the same plan, at the highest precision of products. Their weights
come from the same seed, and their tokens are the same. Attention over some of the keys, which rings
of several chips take, is compared with attention by blocks on one device: no step of one device
calls its kernel.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from accelerator_device import Device, Found
from accelerator_train import Run

import shardwise as sw
from shardwise.hardware import System
from shardwise.hardware.chip import with_values
from shardwise.plan.schema.json_io import decode
from shardwise.plan.schema.json_output import encode
from shardwise.plan.training.rebuild import rebuild
from shardwise.runtime.devices import devices_or_cpu, local_devices
from shardwise.runtime.kernels import attention, blockwise
from shardwise.runtime.layout.mesh import role_mesh
from shardwise.strategy.mesh import Mesh

SIDE_S = 300.0  # that the CPU may take
SIZES = {
    False: {"n_layers": 4, "d_model": 256, "d_ff": 1024, "n_heads": 4, "vocab": 4096},
    True: {"n_layers": 1, "d_model": 32, "d_ff": 64, "n_heads": 2, "vocab": 128},
}
JOBS = {False: (8, 256, 10), True: (4, 32, 3)}  # sequences, tokens of each, steps; tiny or not
FIXED = {"n_microbatches": 1, "remat": "none"}
# How far a number may be from the CPU's, over it. Sums in another order are 1e-7 of it; the update
# of AdamW divides by small gradients, and carries more of it from step to step.
MOST = {"losses": 1e-4, "norms": 1e-3}
MOST_BF16 = 2e-2  # a few times the rounding of bf16, 2^-9 = 0.002


def parity(device: Device) -> Found:
    """Losses and gradient norms of both sides, and whether they agree."""
    batch, seq, steps = JOBS[device.tiny]
    fp32 = dict.fromkeys(("weights", "compute", "gradients", "moments"), "fp32")
    job = sw.Train(batch=batch, seq=seq, **fp32)
    sizes = SIZES[device.tiny]
    model = sw.ModelConfig.dense(name="parity", n_kv_heads=sizes["n_heads"], **sizes)
    plan = sw.plan(model, with_fp32(device.machine(measured=False)), job, FIXED)
    here = side(plan, local_devices(), steps)
    there = side_on_cpu(plan, steps)
    apart = {name: furthest(here[name], there[name]) for name in MOST}
    for name, most in MOST.items():
        if not apart[name] <= most:  # nor of what is no number
            raise ArithmeticError(
                f"{name} are apart by {apart[name]:.2g} of the CPU's, more than {most:g}: "
                f"{here[name]} here, {there[name]} on the CPU"
            )
    found: Found = {"steps": steps, "here": here, "cpu": there, "apart": apart, "most": MOST}
    return {**found, "some_keys": some_keys(device.tiny)}


def some_keys(tiny: bool) -> dict[str, float]:
    """How far outputs and gradients of bf16 attention are from those by blocks in fp32.

    Each is the largest difference over the largest number.

    Raises:
        ArithmeticError: one is farther than `MOST_BF16`.
    """
    platform = role_mesh(Mesh().sizes, np.array(jax.local_devices()[:1])).platform
    n_tokens, width = (128, 32) if tiny else (2048, 128)
    keys = jax.random.split(jax.random.key(0), 4)
    q, do = (jax.random.normal(key, (2, 8, n_tokens, width)) for key in keys[:2])
    k, v = (jax.random.normal(key, (2, 4, n_tokens, width)) for key in keys[2:])
    apart = {}
    for causal in (True, False):
        o, l = blockwise.forward(q * width**-0.5, k, v, causal=causal)
        arrays = (q * width**-0.5, k, v, o, l, do)
        wanted = (o, l, *blockwise.backward(*arrays, causal=causal))
        in_bf16 = [x.astype(jnp.bfloat16) if x is not l else x for x in arrays]
        outputs = attention.forward(*in_bf16[:3], platform=platform, causal=causal)
        gradients = attention.backward(*in_bf16, platform=platform, causal=causal)
        for name, here, there in zip(
            ("o", "l", "dq", "dk", "dv"), (*outputs, *gradients), wanted, strict=True
        ):
            apart[f"{name}{' causal' if causal else ''}"] = float(
                jnp.abs(here.astype(jnp.float32) - there).max() / jnp.abs(there).max()
            )
    if not max(apart.values()) <= MOST_BF16:
        raise ArithmeticError(f"attention over some of the keys is off by {apart}")
    return apart


def with_fp32(system: System) -> System:
    """A machine with a peak in fp32, which chips of the catalog lack; only times depend on it."""
    if "fp32" in system.chip.peak_flops_per_s:
        return system
    return replace(system, chip=with_values(system.chip, {"peak.fp32": 1e12}))


def side(plan: sw.Plan, devices: list[Any], steps: int) -> dict[str, list[float]]:
    """Losses and gradient norms of some steps."""
    with jax.default_matmul_precision("highest"):
        run = Run(plan, devices)
        told = [run.step() for _ in range(steps)]
    losses, norms = zip(*told, strict=True)
    return {"losses": list(losses), "norms": list(norms)}


def side_on_cpu(plan: sw.Plan, steps: int) -> dict[str, list[float]]:
    """The same in a process that has the CPU alone."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "plan.json"
        file.write_bytes(encode(plan))
        done = subprocess.run(
            [sys.executable, __file__, str(file), str(steps)],
            env={**os.environ, "JAX_PLATFORMS": "cpu"},
            capture_output=True,
            text=True,
            timeout=SIDE_S,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(f"the side of the CPU failed: {done.stderr.strip()[-200:]}")
    found: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def furthest(here: list[float], there: list[float]) -> float:
    """The largest difference over the CPU's number."""
    return float(max(abs(a - b) / abs(b) for a, b in zip(here, there, strict=True)))


def main(words: list[str]) -> None:
    """The side of the CPU, as a process."""
    plan: Any = decode(Path(words[0]).read_text())
    devices = devices_or_cpu(rebuild(plan).system.chip.n_devices or 1)
    print(json.dumps(side(plan, devices, int(words[1]))))


if __name__ == "__main__":
    main(sys.argv[1:])
