"""The forms that a search tries: ZeRO stage, remat policy, pipeline schedule, context kind."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shardwise.errors import BadShape
from shardwise.models import ModelConfig
from shardwise.search.given import Choices, Fixed, checked
from shardwise.strategy import schedules
from shardwise.strategy.layout import Form
from shardwise.strategy.mesh import INSIDE_OUT
from shardwise.vocabulary import CONTEXT_KINDS, DEFAULT_OVERLAPS, NO_SCHEDULE, REMAT_POLICIES
from shardwise.workload import Train

MAX_CHUNKS = 16  # chunks of an interleaved stage; with more, sends outweigh the bubble saved

# Numbers of a strategy that a user may fix, beside the sizes of mesh roles.
NUMBERS = ("micro_batch", "n_microbatches", "virtual", "zero", "expert_tensor", "loss_chunks")


def words() -> dict[str, tuple[str, ...]]:
    """The settings of a strategy that take a word, each with its possible words."""
    return {
        "schedule": (NO_SCHEDULE, *schedules.names()),
        "remat": tuple(REMAT_POLICIES),
        "context_kind": CONTEXT_KINDS,
    }


def names() -> tuple[str, ...]:
    """Every setting of a strategy that can be fixed: mesh roles, numbers and words."""
    return (*INSIDE_OUT, *NUMBERS, *words())


@dataclass(frozen=True, slots=True)
class Group:
    """Meshes to which the same forms apply.

    Args:
        weights_sharded: weights are sharded over `fsdp` or `context` (ZeRO-3).
        pipelined: there is a pipeline.
        context_parallel: sequences are sharded over `context`.
        replicated: several chips hold the same weights, whose state ZeRO can shard.
        sequence_parallel: sequences divide over `context` and `tensor`, so both shard them between
            blocks.
    """

    weights_sharded: bool
    pipelined: bool
    context_parallel: bool
    replicated: bool
    sequence_parallel: bool

    def forms(self, config: ModelConfig, job: Train, fixed: Choices) -> Iterator[Form]:
        """Every form of the group."""
        options: dict[str, tuple[Any, ...]] = {
            "context_kind": ("gather",),
            "expert_tensor": (None,),
            "remat": policies(job),
            "zero": (0,),
            "schedule": (NO_SCHEDULE,),
        }
        legal = dict(options)
        if self.context_parallel:
            options["context_kind"] = legal["context_kind"] = CONTEXT_KINDS
        if config.is_moe:
            options["expert_tensor"] = legal["expert_tensor"] = (None, 1)
        # Forms that never win are tried only on request: ZeRO-0 sends as much as ZeRO-1 and holds
        # more.
        if self.weights_sharded:
            options["zero"] = legal["zero"] = (3,)
        elif self.replicated:
            options["zero"] = (1, 2)
            legal["zero"] = (0, 1, 2)
        if self.pipelined:
            options["schedule"] = schedules.searched()
            legal["schedule"] = schedules.names()
        for name in options:
            if name in fixed:
                options[name] = tuple(word for word in legal[name] if word == fixed[name])
        for choice in itertools.product(*options.values()):
            chosen = dict(zip(options, choice, strict=True))
            recomputed = REMAT_POLICIES[chosen.pop("remat")]
            yield Form(
                **chosen,
                loss_chunks=int(fixed.get("loss_chunks", 1)),
                recomputed=recomputed,
                sequence_parallel=self.sequence_parallel,
                overlap=(*DEFAULT_OVERLAPS, *job.overlap),
                offload=job.offload,
            )


def smallest(forms: Sequence[Form]) -> Form:
    """The form under which a chip holds least, of forms that differ in remat and ZeRO alone."""
    return ([form for form in forms if form.full_remat] or forms)[-1]


def lighter(forms: Sequence[Form]) -> list[Form]:
    """The smallest form of each schedule that holds less than 1F1B."""
    smallest_forms = []
    for name, schedule in schedules.schedules().items():
        of_schedule = [form for form in forms if form.schedule == name]
        if schedule.holds_less and of_schedule:
            smallest_forms.append(smallest(of_schedule))
    return smallest_forms


def policies(job: Train) -> tuple[str, ...]:
    """The remat policies to try: that of the job, or all under `auto`."""
    if job.remat == "auto":
        return tuple(REMAT_POLICIES)
    return (job.remat,)


def read_fixed(chosen: Choices | None, max_sizes: Mapping[str, int] | None = None) -> Fixed:
    """Check the settings of a training search and make them one value.

    Raises:
        UnknownName: an unknown setting or word. BadShape: a size that is not a positive integer.
    """
    fixed = checked(chosen, max_sizes, words(), NUMBERS)
    if fixed.get("zero", 0) not in range(4):
        raise BadShape(f"zero {fixed['zero']} is not a stage of ZeRO: 0, 1, 2 or 3.")
    return fixed
