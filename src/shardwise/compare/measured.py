"""A measured step by groups, from the profile of a trace; and the steps of a run."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shardwise.compare.groups import (
    COMMUNICATION_GROUP,
    MATMUL_GROUPS,
    MATMULS,
    communication_group,
    measured_group,
)
from shardwise.compare.planned import PlannedStep
from shardwise.compare.result import MeasuredSteps
from shardwise.errors import BadInput
from shardwise.profile.categories import MATMUL
from shardwise.profile.result import OperationTime, Profile
from shardwise.train.metrics import StepRecord

WARMUP = 2  # first steps of a run, which load programs and fill caches
TENTHS = 10
REMAT = "remat"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredGroup:
    """Operations of a group, the longest first; `remat_s` is the time of recomputed matmuls."""

    seconds: float
    remat_s: float
    operations: tuple[OperationTime, ...]

    @property
    def largest(self) -> OperationTime:
        """The operation that takes longest."""
        return self.operations[0]


def measured_groups(profile: Profile, planned: PlannedStep | None) -> dict[str, MeasuredGroup]:
    """The operations of a profile by group; the groups sum to the step.

    Collectives have a group for each role if the plan says the role of every one of them.
    """
    members: dict[str, list[OperationTime]] = {}
    one_group = planned is None or not _roles_are_known(profile, planned)
    for operation in profile.operations:
        group = measured_group(operation.name, operation.category)
        if not group:
            group = COMMUNICATION_GROUP
            if planned is not None and not one_group:
                group = communication_group(_role(operation, planned))
        elif planned is not None and planned.merges_matmuls and group in MATMUL_GROUPS[:-1]:
            group = MATMULS
        members.setdefault(group, []).append(operation)
    groups = {}
    for group, operations in members.items():
        remat = [op for op in operations if op.phase == REMAT and op.category == MATMUL]
        groups[group] = MeasuredGroup(
            seconds=sum(op.seconds for op in operations),
            remat_s=sum(op.seconds for op in remat),
            operations=tuple(operations),
        )
    return groups


def _roles_are_known(profile: Profile, planned: PlannedStep) -> bool:
    if len(planned.traffic_s) <= 1:
        return bool(planned.traffic_s)
    collectives = [
        operation
        for operation in profile.operations
        if not measured_group(operation.name, operation.category)
    ]
    return all(len(planned.roles.get(op.name, ())) == 1 for op in collectives)


def _role(operation: OperationTime, planned: PlannedStep) -> str:
    if len(planned.traffic_s) == 1:
        return next(iter(planned.traffic_s))
    return next(iter(planned.roles[operation.name]))


def joined_communication(seconds: Mapping[str, float], roles: Sequence[str]) -> dict[str, float]:
    """Planned seconds by group with the collectives of all roles as one group."""
    joined = dict(seconds)
    total = sum(joined.pop(communication_group(role), 0.0) for role in roles)
    joined[COMMUNICATION_GROUP] = total
    return joined


def require_steps(profile: Profile) -> None:
    """Refuse a trace of which only the whole is known."""
    if not profile.has_steps:
        raise BadInput(
            f"{profile.trace} has no step to compare: {profile.n_programs:,} programs run, most "
            f"often {profile.most_frequent}, and none takes half of the time. Is the step jitted? "
            "jax.profiler.StepTraceAnnotation marks steps of several programs.",
        )


def steps_of_profile(profile: Profile) -> MeasuredSteps:
    """The steps of a trace."""
    return MeasuredSteps(
        n=profile.steps,
        typical_s=profile.step_s,
        low_s=profile.step_s,
        high_s=max(profile.step_s, profile.longest_step_s),
    )


def steps_of_run(records: Sequence[StepRecord]) -> MeasuredSteps:
    """The steps of a run without the first ones, if it has others."""
    steady = sorted(record.step_s for record in records[WARMUP:] or records)
    low_s = high_s = steady[0]
    if len(steady) > 1:
        tenths = statistics.quantiles(steady, n=TENTHS, method="inclusive")
        low_s = tenths[0]
        high_s = tenths[-1]
    return MeasuredSteps(
        n=len(steady), typical_s=statistics.median(steady), low_s=low_s, high_s=high_s
    )
