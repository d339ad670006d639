"""Forms of layouts that a training search tries.

A form is a layout without its mesh and microbatch size: ZeRO stage, remat policy, pipeline
schedule, kind of context parallelism.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from shardwise.errors import BadShape
from shardwise.estimate.training.framework_profiles import overlaps_of
from shardwise.models import ModelConfig
from shardwise.search.given import Choices, Fixed, check_fixed
from shardwise.search.training.framework_limits import remat_policies, runs_form
from shardwise.strategy import schedules
from shardwise.strategy.layout import Form, recomputed_parts
from shardwise.strategy.mesh import INSIDE_OUT
from shardwise.vocabulary import (
    CONTEXT_KINDS,
    NO_SCHEDULE,
    PARTS,
    REMAT_POLICIES,
)
from shardwise.workload import Train

# Most chunks of layers on a stage of an interleaved schedule; with more, sends between stages cost
# more time than the smaller bubble saves.
MAX_CHUNKS = 16

CACHED_LISTS = 256  # number of cached lists of forms, which a search asks for again and again

WithoutRemat = tuple[str, int | None, int, str]  # see `without_remat`

# Settings with numbers that a user may fix, other than the sizes of mesh roles.
NUMBERS = ("micro_batch", "n_microbatches", "virtual", "zero", "expert_tensor", "loss_chunks")


def words() -> dict[str, tuple[str, ...]]:
    """Setting with a string value that a user may fix -> its legal values."""
    return {
        "schedule": (NO_SCHEDULE, *schedules.names()),
        "remat": tuple(REMAT_POLICIES),
        "context_kind": CONTEXT_KINDS,
    }


def names() -> tuple[str, ...]:
    """Names of all settings that a user may fix: mesh roles, numbers and strings."""
    return (*INSIDE_OUT, *NUMBERS, *words())


@dataclass(frozen=True, slots=True)
class Group:
    """Properties of a mesh that determine which forms it can have.

    Args:
        weights_sharded: whether weights are sharded over `fsdp` or `context` (ZeRO-3).
        pipelined: whether there is more than one pipeline stage.
        context_parallel: whether sequences are sharded over `context`.
        replicated: whether several chips hold the same weights, so that ZeRO can shard their state.
        sequence_parallel: whether `context` and `tensor` both shard the sequence between blocks,
            which they do if its length is divisible by the product of their sizes.
    """

    weights_sharded: bool
    pipelined: bool
    context_parallel: bool
    replicated: bool
    sequence_parallel: bool

    def forms(self, config: ModelConfig, job: Train, fixed: Choices) -> Iterator[Form]:
        """Every form that meshes of this group can have and that agrees with the fixed settings."""
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
            if fixed.get("tensor") == 1:  # then both are the same
                options["expert_tensor"] = (None,)
        # ZeRO-0 is tried only if the user fixed it: it sends as much as ZeRO-1 and needs more
        # memory.
        if self.weights_sharded:
            options["zero"] = legal["zero"] = (3,)
        elif self.replicated:
            options["zero"] = (1, 2)
            legal["zero"] = (0, 1, 2)
        if self.pipelined:
            options["schedule"] = schedules.searched()
            legal["schedule"] = schedules.names()
        if job.remat == "auto" and "remat" in fixed:
            legal["remat"] = (fixed["remat"],)  # a policy, or parts
        for name in options:
            if name in fixed:
                options[name] = tuple(value for value in legal[name] if value == fixed[name])
        if config.is_moe and fixed.get("expert_tensor", 0) == fixed.get("tensor"):
            options["expert_tensor"] = (None,)
        if fixed.get("virtual", 1) != 1:
            options["schedule"] = tuple(filter(schedules.chunked, options["schedule"]))
        for choice in itertools.product(*options.values()):
            chosen = dict(zip(options, choice, strict=True))
            recomputed = recomputed_parts(chosen.pop("remat"))
            yield Form(
                **chosen,
                loss_chunks=int(fixed.get("loss_chunks", 1)),
                recomputed=recomputed,
                sequence_parallel=self.sequence_parallel,
                overlap=overlaps_of(job),
                offload=job.offload,
            )


@functools.lru_cache(maxsize=CACHED_LISTS)
def framework_forms(
    group: Group, config: ModelConfig, job: Train, fixed: Fixed
) -> tuple[Form, ...]:
    """The forms of a group that the job's framework runs, or all if any layout is wanted."""
    policies = remat_policies(job.framework, config)
    is_given = job.remat != "auto" or "remat" in fixed
    forms = []
    for form in group.forms(config, job, fixed):
        is_limited = fixed.in_practice is not None and group.pipelined
        if is_limited and form.schedule not in (fixed.in_practice or ()):
            continue
        runs = runs_form(job.framework, form, context_parallel=group.context_parallel)
        if fixed.any_layout or (runs and (is_given or form.policy in policies)):
            forms.append(form)
    return tuple(forms)


def without_remat(form: Form) -> WithoutRemat:
    """The choices of a form that tell it apart from others, except its remat policy."""
    return (form.context_kind, form.expert_tensor, form.zero, form.schedule)


def least_memory_form(forms: Sequence[Form]) -> Form:
    """The form that needs the least memory, of forms that differ only in remat and ZeRO stage."""
    return ([form for form in forms if form.full_remat] or forms)[-1]


def forms_below_1f1b(forms: Sequence[Form]) -> list[Form]:
    """For each schedule that needs less memory than 1F1B, its form that needs the least."""
    least_memory_forms = []
    for name, schedule in schedules.schedules().items():
        schedule_forms = [form for form in forms if form.schedule == name]
        if schedule.holds_less and schedule_forms:
            least_memory_forms.append(least_memory_form(schedule_forms))
    return least_memory_forms


def policies(job: Train) -> tuple[str, ...]:
    """The remat policies to try: the job's policy, or every policy if the job says "auto"."""
    if job.remat == "auto":
        return tuple(REMAT_POLICIES)
    return (job.remat,)


def read_fixed(
    chosen: Choices | None, max_sizes: Mapping[str, int] | None = None, *, any_layout: bool = False
) -> Fixed:
    """Check the settings that the user fixed for a training search.

    Raises:
        UnknownName: an unknown setting, or an unknown value of a setting.
        BadShape: a size is not a positive integer, a ZeRO stage does not exist, or `virtual`
            contradicts the schedule.
    """
    legal = words()
    remat = str((chosen or {}).get("remat", ""))
    if remat and set(remat.split(",")) <= set(PARTS):  # of a framework's file: no policy has them
        legal["remat"] += (remat,)
    fixed = check_fixed(chosen, max_sizes, legal, NUMBERS)
    if fixed.get("zero", 0) not in range(4):
        raise BadShape(f"zero {fixed['zero']} is not a stage of ZeRO: 0, 1, 2 or 3.")
    schedule = str(fixed.get("schedule", ""))
    if fixed.get("virtual", 1) != 1 and schedule and not schedules.chunked(schedule):
        others = ", ".join(filter(schedules.chunked, schedules.names()))
        raise BadShape(
            f"virtual {fixed['virtual']} contradicts schedule {schedule}, which has its own number "
            f"of chunks on a stage. Leave one of them free, or take schedule {others}."
        )
    return replace(fixed, any_layout=any_layout)
