"""A plan and the program that the compiler made of it, number against number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shardwise import units
from shardwise.check.hlo.collectives import Collective
from shardwise.check.hlo.scopes import scope
from shardwise.check.verdict import CheckedCollective, Difference, PlannedNumbers
from shardwise.plan.collectives import PlannedCollective, planned_collectives
from shardwise.plan.schema.common import Operation
from shardwise.plan.schema.serving import ServingPlan
from shardwise.plan.schema.training import Plan
from shardwise.strategy.mesh import INSIDE_OUT

MISSING = 0.5  # of a role's planned bytes: with less in the program its traffic is missing
SLIGHT = 1e-3  # of all planned bytes: sums of norms, whose roles are not told apart
ATTENTION = "attn.core"  # the operation in which keys and values meet queries
SUMS = ("all_reduce", "reduce_scatter")
COPIES = ("fsdp", "context", "expert")  # along which weights are copied, or vectors of a layer
SAME = 0.02  # bytes that differ by less are no difference


def computed(op: Operation) -> float:
    """FLOPs of an operation as kernels compute them."""
    return op.computed_flops or op.flops


def planned_numbers(plan: Plan) -> PlannedNumbers:
    """The plan's side."""
    return PlannedNumbers(
        peak_bytes=plan.memory.total,
        flops=sum(map(computed, plan.operations)),
        step_s=plan.step,
    )


def held_against(
    plan: Plan | ServingPlan, found: Iterable[Collective], step: str | None = None
) -> tuple[CheckedCollective, ...]:
    """Planned and compiled collectives side by side, by role and kind; of serving, of one step."""
    planned = {(p.role, p.kind): p for p in planned_collectives(plan, step)}
    compiled: dict[tuple[str, str], list[Collective]] = {}
    for one in found:
        compiled.setdefault((_role(one, planned), one.kind), []).append(one)
    keys = [*planned, *(key for key in compiled if key not in planned)]
    return tuple(_side_by_side(key, planned.get(key), compiled.get(key, [])) for key in keys)


def _side_by_side(
    key: tuple[str, str], planned: PlannedCollective | None, found: list[Collective]
) -> CheckedCollective:
    total = sum(one.received_bytes * one.count for one in found)
    beside = sum(one.received_bytes * one.count for one in found if one.form != "sync")
    return CheckedCollective(
        role=key[0],
        kind=key[1],
        planned_n=planned.n if planned else 0,
        planned_bytes=planned.received_bytes if planned else 0.0,
        compiled_n=sum(one.count for one in found),
        compiled_bytes=float(total),
        asynchronous=beside / total if total else 0.0,
    )


def _role(one: Collective, planned: Mapping[tuple[str, str], PlannedCollective]) -> str:
    """The role of the mesh axes of a collective, as a plan has it.

    Weights are gathered over `fsdp` and `context` together, and sums over copies of weights, over
    whatever axes, are `data` traffic.
    """
    if scope(one.op_name)[0] == "loss" or one.joined_bytes <= units.bytes_per_element("fp32"):
        return "other"
    roles = {axis.split(".")[0] for axis in one.axes}
    role = next((role for role in INSIDE_OUT if role in roles), "other")
    if len(roles) < 2 and (role, one.kind) in planned:
        return role
    same = [p.role for p in planned.values() if p.kind == one.kind and roles in p.each]
    same += [p.role for p in planned.values() if p.kind == one.kind and roles == {*p.axes}]
    if same:
        return same[0]
    # Gathered over one role after the other; between queries and keys no weight is.
    whole = [p.role for p in planned.values() if p.kind == one.kind and roles < {*p.axes}]
    if one.kind == "all_gather" and whole and scope(one.op_name)[0] != ATTENTION:
        return whole[0]
    if len(roles) < 2 and not (one.kind in SUMS and role in COPIES):
        return role
    # A part of a sum over several roles: a ReduceScatter goes over one axis after the other.
    scattered = one.kind != "all_reduce" and ("data", one.kind) not in planned
    return "fsdp" if scattered else "data"


def differences(
    rows: Iterable[CheckedCollective], n_microbatches: int = 1
) -> tuple[Difference, ...]:
    """What the collectives of the program have that the plan has not, and the other way.

    Sums of norms and of other vectors, `SLIGHT` of the bytes, are passed over.
    """
    rows, found = list(rows), []
    least = SLIGHT * sum(row.planned_bytes for row in rows)
    for row in rows:
        apart = row.compiled_bytes - row.planned_bytes
        slight = SAME * max(row.planned_bytes, row.compiled_bytes)
        if row.role == "other" or abs(apart) <= max(slight, least):
            continue
        found.append(Difference(text=_words(row, rows, n_microbatches), bytes=apart))
    return tuple(sorted(found, key=lambda d: -abs(d.bytes)))


def _words(row: CheckedCollective, rows: list[CheckedCollective], n_microbatches: int) -> str:
    """One difference in words."""
    kind = row.kind.replace("_", "-")
    planned, compiled = (units.show_bytes(b) for b in (row.planned_bytes, row.compiled_bytes))
    sums = next((r for r in rows if r.role == row.role and r.kind == "all_reduce"), None)
    scatter = next((r for r in rows if r.role == row.role and r.kind == "reduce_scatter"), None)
    if row.kind == "all_reduce" and scatter and scatter.compiled_bytes < scatter.planned_bytes:
        return (
            f"{row.role}: {units.show_bytes(row.compiled_bytes - row.planned_bytes)} are summed by "
            "all-reduce: the compiler took it in the place of a reduce-scatter."
        )
    if row.kind == "reduce_scatter" and sums and sums.compiled_bytes > sums.planned_bytes:
        return f"{row.role}: {planned} of reduce-scatter planned, {compiled} left as such."
    if row.role == "fsdp" and 0 < row.compiled_bytes < row.planned_bytes:
        once = (
            "what does not change from one microbatch to the next is moved once."
            if n_microbatches > 1
            else "what both passes need of the ends of the model is moved once."
        )
        return f"fsdp: {planned} of {kind} planned, {compiled} in the program: {once}"
    if not row.planned_bytes:
        return f"{row.role}: {compiled} of {kind} that the plan does not have."
    return f"{row.role}: {planned} of {kind} planned, {compiled} in the program."


def again(planned: float, compiled: float) -> Difference | None:
    """FLOPs of products that the compiler computes a second time, to save memory."""
    if compiled <= planned * SAME:
        return None
    return Difference(
        text=f"{units.show_rate(compiled, 'FLOP')} are computed a second time: arrays that there "
        "was no room for are made again by the compiler, beside the plan's remat.",
        bytes=0.0,
    )


def attention(planned: float, compiled: float) -> Difference | None:
    """FLOPs of attention where the kernel does more than a plan counts."""
    if compiled <= planned * (1 + SAME):
        return None
    return Difference(
        text=f"attention: {units.show_rate(planned, 'FLOP')} planned, "
        f"{units.show_rate(compiled, 'FLOP')} in its kernels, which make scores again in the "
        "backward pass and compute blocks on the diagonal whole.",
        bytes=0.0,
    )


def missing(rows: Iterable[CheckedCollective]) -> list[str]:
    """Roles whose planned traffic is not in the program, whatever its kind."""
    planned: dict[str, float] = {}
    compiled: dict[str, float] = {}
    for row in rows:
        planned[row.role] = planned.get(row.role, 0.0) + row.planned_bytes
        compiled[row.role] = compiled.get(row.role, 0.0) + row.compiled_bytes
    least = SLIGHT * sum(planned.values())
    return [r for r, n in planned.items() if n > least and compiled[r] < MISSING * n]
