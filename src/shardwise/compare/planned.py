"""A planned step by groups: expected seconds, and the FLOPs behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from shardwise.check.causes import planned_part
from shardwise.compare.groups import (
    ATTENTION_GROUP,
    BETWEEN,
    BUBBLE,
    ELEMENTWISE_GROUP,
    ENDS,
    MATMULS,
    communication_group,
    planned_group,
)
from shardwise.estimate.training.framework_profiles import profile_of
from shardwise.estimate.training.step_items import step_items
from shardwise.ops.program import Matmul
from shardwise.plan.schema.common import Operation
from shardwise.plan.schema.json_io import AnyPlan
from shardwise.plan.schema.serving import ServingPlan
from shardwise.plan.schema.training import Plan
from shardwise.plan.training.rebuild import rebuild
from shardwise.strategy.mesh import INSIDE_OUT

# Part of a decoding pass in a plan -> its group.
SERVING_GROUPS = {
    "weights": MATMULS,
    "kv": ATTENTION_GROUP,
    "attention": ATTENTION_GROUP,
    "unembedding": ENDS,
    "elementwise": ELEMENTWISE_GROUP,
    "kernels": BETWEEN,
    "drawing": ELEMENTWISE_GROUP,
    "host": BETWEEN,
}
ROUNDING = 1e-9  # fraction of a step below which a part is no part


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """The expected seconds of a planned step.

    Args:
        seconds: group -> seconds; exposed collectives are a group for each role.
        flops: group -> FLOPs of a chip.
        remat_s: group -> the seconds of it that remat takes.
        traffic_s: role -> seconds of its collectives, exposed and hidden.
        roles: operation of the model -> the roles of its collectives.
        kinds: operation of the model -> the kinds of its collectives.
        merges_matmuls: whether the matmuls of all blocks are one group, as in serving.
    """

    step_s: float
    seconds: Mapping[str, float]
    flops: Mapping[str, float]
    remat_s: Mapping[str, float]
    traffic_s: Mapping[str, float]
    roles: Mapping[str, frozenset[str]]
    kinds: Mapping[str, frozenset[str]] = field(default_factory=dict)
    merges_matmuls: bool = False

    @property
    def hidden_s(self) -> float:
        """Seconds of collectives that do not lengthen the step."""
        exposed = sum(self.seconds.get(communication_group(role), 0.0) for role in self.traffic_s)
        return max(0.0, sum(self.traffic_s.values()) - exposed)


def planned_step(plan: AnyPlan) -> PlannedStep:
    """The expected step of a training plan, or the decoding pass of a serving plan."""
    if isinstance(plan, ServingPlan):
        return _serving_step(plan)
    return _training_step(plan)


def _training_step(plan: Plan) -> PlannedStep:
    case = rebuild(plan)
    step = case.step()
    fusion = profile_of(case.job, case.system.chip)
    priced = step.priced(case.cal, fusion)
    time = step.time(case.cal, fusion)
    seconds: dict[str, float] = {}
    flops: dict[str, float] = {}
    remat_s: dict[str, float] = {}
    for item in step_items(priced, step.program):
        if item.role is not None:
            continue
        group = planned_group(item.name)
        _add(seconds, group, float(item.seconds))
        padded = 1.0
        if isinstance(item.work, Matmul):
            padded = priced.rates.padded_experts(item.work)
        _add(flops, group, padded * float(item.flops))
        if item.phase == "remat":
            _add(remat_s, group, float(item.seconds))
    for role, exposed_s in time.comm_s.items():
        _add(seconds, communication_group(role), float(exposed_s))
    _add(seconds, BUBBLE, float(time.bubble_s))
    step_s = plan.estimate.step_s.expected
    return PlannedStep(
        step_s=step_s,
        seconds={group: s for group, s in seconds.items() if s > ROUNDING * step_s},
        flops=flops,
        remat_s=remat_s,
        traffic_s={role: float(s) for role, s in time.traffic_s.items() if float(s) > 0},
        roles=_roles(plan.operations),
        kinds=_kinds(plan.operations),
    )


def _serving_step(plan: ServingPlan) -> PlannedStep:
    decode = plan.estimate.decode
    operations = [op for op in plan.operations if op.phase == "decode"]
    seconds: dict[str, float] = {}
    traffic_s: dict[str, float] = {}
    for part, part_s in decode.parts.items():
        if part in INSIDE_OUT:
            traffic_s[part] = part_s
            _add(seconds, communication_group(part), part_s)
        else:
            _add(seconds, SERVING_GROUPS.get(part, ELEMENTWISE_GROUP), part_s)
    flops: dict[str, float] = {}
    for op in operations:
        if not op.collective:
            group = planned_group(op.name)
            merged = group if group in (ATTENTION_GROUP, ENDS, ELEMENTWISE_GROUP) else MATMULS
            _add(flops, merged, op.flops)
    return PlannedStep(
        step_s=decode.step_s.expected,
        seconds=seconds,
        flops=flops,
        remat_s={},
        traffic_s=traffic_s,
        roles=_roles(operations),
        kinds=_kinds(operations),
        merges_matmuls=True,
    )


def _roles(operations: tuple[Operation, ...] | list[Operation]) -> dict[str, frozenset[str]]:
    roles: dict[str, frozenset[str]] = {}
    for op in operations:
        if op.collective and op.role:
            name = planned_part(op.name)
            roles[name] = roles.get(name, frozenset()) | {op.role}
    return roles


def _kinds(operations: Sequence[Operation]) -> dict[str, frozenset[str]]:
    kinds: dict[str, frozenset[str]] = {}
    for op in operations:
        if op.collective:
            name = planned_part(op.name)
            kinds[name] = kinds.get(name, frozenset()) | {op.collective}
    return kinds


def _add(sums: dict[str, float], key: str, value: float) -> None:
    sums[key] = sums.get(key, 0.0) + value
