"""What flags of Megatron-LM change of memory, steps and start, and a plan does not."""

from __future__ import annotations

import math
from collections.abc import Iterator

from shardwise.frameworks import megatron_stages
from shardwise.frameworks.exported import Settings
from shardwise.frameworks.shell_script import torchrun_chips

_PARALLEL = (
    "--tensor-model-parallel-size", "--pipeline-model-parallel-size", "--context-parallel-size",
)  # fmt: skip
_ENDS = tuple("--" + name.replace("_", "-") for name in megatron_stages.ENDS)
_OF_STAGES = (
    "--decoder-first-pipeline-num-layers", "--decoder-last-pipeline-num-layers",
    "--pipeline-model-parallel-layout",
)  # fmt: skip


def notes(settings: Settings) -> Iterator[str]:
    """A sentence about each of them."""
    if "--rampup-batch-size" in settings:
        batch = settings.get("--global-batch-size", "--global-batch-size")
        yield f"--rampup-batch-size: steps grow to {batch} sequences; those of the end are planned."
    if "--deepspeed" not in settings:  # a fork, which overlaps and divides otherwise
        yield from _not_overlapped(settings)
        yield from _uneven(settings)
    first, last = (settings.get(flag) for flag in _OF_STAGES[:2])
    if first or (last and last != _last_stage(settings)):
        yield (
            f"{first or 'equal'} layers on the first stage and {last or 'equal'} on the last: the "
            "plan has equal stages, the last with what is left."
        )


def _not_overlapped(settings: Settings) -> Iterator[str]:
    """Traffic of data parallelism that the plan hides behind compute, and the run does not."""
    wanted = ["--overlap-grad-reduce"]
    if "--use-distributed-optimizer" in settings:
        wanted.append("--overlap-param-gather")
    missing = [flag for flag in wanted if flag not in settings]
    ranks = math.prod(_number(settings, flag) or 1 for flag in _PARALLEL)
    if missing and torchrun_chips(settings) != ranks:  # there is data parallelism
        yield (
            f"without {' and '.join(missing)} the run waits for traffic of data parallelism that "
            "the plan overlaps with compute."
        )


def _uneven(settings: Settings) -> Iterator[str]:
    """Layers that Megatron does not divide over its stages."""
    layers, pipe = _number(settings, "--num-layers"), _number(settings, _PARALLEL[1])
    if not layers or not pipe or any(flag in settings for flag in _OF_STAGES):
        return
    n_ends = sum(settings.get(flag) is True for flag in _ENDS)
    if (layers + n_ends) % pipe:
        ends = f" and {n_ends} for embedding or loss" if n_ends else ""
        yield f"{layers} layers{ends} do not divide over {pipe} stages: Megatron does not start so."


def _last_stage(settings: Settings) -> int | None:
    """Layers of the last stage as `write` says them; None if the script does not say them all."""
    layers, pipe = _number(settings, "--num-layers"), _number(settings, _PARALLEL[1])
    return megatron_stages.last_stage(layers, pipe) if layers and pipe else None


def _number(settings: Settings, flag: str) -> int | None:
    """The value of a flag if it is a positive number."""
    value = settings.get(flag)
    return value if isinstance(value, int) and value > 0 else None
