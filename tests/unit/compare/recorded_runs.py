"""Two runs of `shardwise train` on two devices of a CPU, recorded: with and without remat.

`fsdp` and `fsdp_remat` are profiles of five steps of a Llama of four layers under fsdp=2, and
`fsdp.jsonl` the metrics of the first. `host.toml` is the chip of their plans.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

import msgspec

import shardwise as sw
from shardwise.profile.result import OperationTime, Profile

FOLDER = Path(__file__).parent / "recorded"
MODEL = sw.ModelConfig.dense(
    name="a small Llama",
    n_layers=4,
    d_model=256,
    d_ff=768,
    n_heads=4,
    n_kv_heads=2,
    vocab=264,
)
JOB = sw.Train(batch=16, seq=128, weights="fp32", compute="fp32")


@functools.cache
def plan(vocab: int = 264, remat: str = "none", **mesh: int) -> sw.Plan:
    machine = sw.hardware(f"{FOLDER / 'host.toml'}:2")
    return sw.plan(replace(MODEL, vocab=vocab), machine, JOB, {"remat": remat, **mesh})  # type: ignore[return-value]


@functools.cache
def profile(name: str = "fsdp") -> Profile:
    return msgspec.json.decode((FOLDER / f"{name}.profile.json").read_bytes(), type=Profile)


def with_times(original: Profile, factors: dict[str, float]) -> Profile:
    """The profile with some operations longer, by their names."""

    def longer(part: OperationTime) -> OperationTime:
        return replace(part, seconds=part.seconds * factors.get(part.name, 1.0))

    operations = tuple(map(longer, original.operations))
    step_s = sum(part.seconds for part in operations)
    return replace(original, operations=operations, step_s=step_s, longest_step_s=step_s * 1.02)
