"""The words of a strategy that the search tries: ZeRO, remat, schedule, way of the context."""

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

MOST_CHUNKS = 16  # of an interleaved stage: beyond it sends outweigh the bubble that is left

# What may be given of a strategy beside the roles of the mesh.
NUMBERS = ("micro_batch", "n_microbatches", "virtual", "zero", "expert_tensor", "loss_chunks")


def words() -> dict[str, tuple[str, ...]]:
    """The names that may be given, with the words that each may be."""
    return {
        "schedule": (NO_SCHEDULE, *schedules.names()),
        "remat": tuple(REMAT_POLICIES),
        "context_kind": CONTEXT_KINDS,
    }


def names() -> tuple[str, ...]:
    """Everything of a strategy that may be given: mesh roles, numbers and words."""
    return (*INSIDE_OUT, *NUMBERS, *words())


@dataclass(frozen=True, slots=True)
class Group:
    """Layouts for which the same words make sense.

    Args:
        sharded: weights are sharded over `fsdp` or `context` (ZeRO-3).
        piped: there is a pipeline.
        cut: sequences are cut over `context`.
        even: sequences divide over `context` and `tensor`: between blocks both split them.
        copied: several chips hold the same weights, of which ZeRO can shard the state.
    """

    sharded: bool
    piped: bool
    cut: bool
    copied: bool
    even: bool

    def forms(self, config: ModelConfig, job: Train, fixed: Choices) -> Iterator[Form]:
        """Every form of the group."""
        options: dict[str, tuple[Any, ...]] = {
            "context_kind": CONTEXT_KINDS if self.cut else ("gather",),
            "expert_tensor": (None, 1) if config.is_moe else (None,),
            "remat": policies(job),
            "zero": (3,) if self.sharded else (1, 2) if self.copied else (0,),
            "schedule": schedules.searched() if self.piped else (NO_SCHEDULE,),
        }
        # What never wins is tried when it is asked for: ZeRO-0 sends as much as ZeRO-1 and holds
        # more.
        legal = dict(options)
        if self.copied and not self.sharded:
            legal["zero"] = (0, 1, 2)
        if self.piped:
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
                sequence_parallel=self.even,
                overlap=(*DEFAULT_OVERLAPS, *job.overlap),
                offload=job.offload,
            )


def smallest(forms: Sequence[Form]) -> Form:
    """The form, of those that differ in remat and ZeRO alone, under which a chip holds least."""
    return ([form for form in forms if form.full_remat] or forms)[-1]


def lighter(forms: Sequence[Form]) -> list[Form]:
    """For each schedule that holds less than 1F1B, the form under which a chip holds least."""
    every = schedules.schedules()
    names = [name for name, schedule in every.items() if schedule.holds_less]
    groups = [[form for form in forms if form.schedule == name] for name in names]
    return [smallest(group) for group in groups if group]


def policies(job: Train) -> tuple[str, ...]:
    """The remat policies to try: the one asked for, or all."""
    return tuple(REMAT_POLICIES) if job.remat == "auto" else (job.remat,)


def read_fixed(chosen: Choices | None, max_sizes: Mapping[str, int] | None = None) -> Fixed:
    """What a search is given, after names and values that no strategy has are refused.

    Raises:
        UnknownName: a name or a word that is none. BadShape: a size that is no whole number from 1.
    """
    fixed = checked(chosen, max_sizes, words(), NUMBERS)
    if fixed.get("zero", 0) not in range(4):
        raise BadShape(f"zero {fixed['zero']} is not a stage of ZeRO: 0, 1, 2 or 3.")
    return fixed
