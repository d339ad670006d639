"""Whether a trace or a run is of a plan: measured beside another one it says nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shardwise import units
from shardwise.compare.inputs import RunLog
from shardwise.errors import BadInput
from shardwise.plan.machine import system_of
from shardwise.plan.schema.json_io import AnyPlan
from shardwise.plan.schema.serving import ServingPlan
from shardwise.plan.schema.training import DTYPE_FIELDS, LAYOUT_FIELDS, Plan
from shardwise.profile.result import Profile
from shardwise.strategy.mesh import Mesh

SHAPE = ("d_model", "vocab", "groups", "tied_embeddings")  # keys of a model's architecture
# Choices of a layout; `remat` names what is recomputed, and `overlap` is not of the arithmetic.
CHOICES = ("remat", *(name for name in LAYOUT_FIELDS if name not in ("recomputed", "overlap")))
SAME_TOKENS = 0.01  # relative difference of two numbers of tokens that rounding makes


def require_devices(plan: AnyPlan, profile: Profile) -> None:
    """Refuse the trace of other devices; that of one of several hosts has fewer."""
    system = system_of(plan.hardware)
    chip = system.chip
    if chip.kind.upper() != profile.kind:
        raise BadInput(
            f"{profile.trace} is of a {profile.kind}, and the plan for {plan.hardware.name}, a "
            f"{chip.kind.upper()}: their times say nothing about each other.",
            "shardwise hw measure N -o host.toml describes this machine; plan for host.toml:N.",
        )
    n_devices = plan.hardware.n_chips * (chip.n_devices or 1)
    has_hosts = chip.kind != "cpu" and system.n_hosts != 1
    if profile.devices > n_devices or (profile.devices < n_devices and not has_hosts):
        there = f"{profile.devices} device{'s' * (profile.devices > 1)}"
        raise BadInput(
            f"{profile.trace} has {there} and the plan {n_devices}: it is not a trace of this "
            "plan. shardwise profile PLAN.json records one."
        )


def require_run_of(plan: AnyPlan, run: RunLog) -> None:
    """Refuse the run of another plan: of other tokens in a step, another model or another layout.

    Raises:
        BadInput: the first of the differences. The plan of a run is the one in its folder.
    """
    if isinstance(plan, ServingPlan):
        raise BadInput(f"{run.path} is of a run of training, and the plan is of serving.")
    differences = [*_tokens(plan, run)]
    if isinstance(run.plan, Plan):
        differences += _choices(run.plan, plan)
    if differences:
        raise BadInput(
            f"{run.path} has {differences[0]}: it is not a run of this plan.",
            "A folder of shardwise train keeps the plan that it ran: shardwise compare FOLDER.",
        )


def _tokens(plan: Plan, run: RunLog) -> Iterator[str]:
    record = run.records[-1]
    tokens = record.tokens_per_s * record.step_s
    if abs(tokens / plan.workload.tokens_per_step - 1) > SAME_TOKENS:
        yield f"{tokens:,.0f} tokens a step and the plan {plan.workload.tokens_per_step:,}"


def _choices(ran: Plan, plan: Plan) -> Iterator[str]:
    """What differs between the plan of a run and another one, and decides what a step computes."""
    shapes = [[each.model.architecture.get(key) for key in SHAPE] for each in (ran, plan)]
    if shapes[0] != shapes[1]:
        yield f"{_model(ran)} and the plan {_model(plan)}"
    if ran.strategy.mesh != plan.strategy.mesh:
        yield " and the plan ".join(str(Mesh(**each.strategy.mesh)) for each in (ran, plan))
    for name in ("batch", "seq", "optimizer"):
        yield from _values(name, getattr(ran.workload, name), getattr(plan.workload, name))
    for name in CHOICES:
        yield from _values(name, getattr(ran.strategy, name), getattr(plan.strategy, name))
    for name in DTYPE_FIELDS:
        dtypes = [each.strategy.precision.get(name) for each in (ran, plan)]
        yield from _values(f"{name} in", *dtypes)


def _values(name: str, ran: Any, planned: Any) -> Iterator[str]:
    if ran != planned:
        yield f"{name} {ran} and the plan {planned}"


def _model(plan: Plan) -> str:
    return f"{plan.model.name} of {units.show_count(plan.model.n_parameters)} parameters"
