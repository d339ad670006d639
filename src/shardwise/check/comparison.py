"""Comparison of the collectives and FLOPs of a plan with those of its compiled program."""

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

# Traffic of a role counts as missing if the program has less than this fraction of its bytes.
MISSING_SHARE = 0.5
# Collectives below this fraction of all planned bytes are ignored: reductions of gradients of norms
# and other vectors, whose roles cannot be told apart.
NEGLIGIBLE_SHARE = 1e-3
ROUNDING_SHARE = 0.02  # numbers that differ by a smaller fraction count as equal
ATTENTION = "attn.core"  # the operation that computes attention from queries, keys and values
# Names of the plan and of the program for what one attention kernel computes. Their collectives
# over `context` are of keys and values, or of their gradients.
ATTENTION_PARTS = ("attn.scores", "attn.values", "attn.prompts", "attn.caches")
REDUCTIONS = ("all_reduce", "reduce_scatter")
REPLICATED_ROLES = ("fsdp", "context", "expert")  # along these, weights or norms are replicated


def computed_flops(op: Operation) -> float:
    """FLOPs that the kernels of an operation compute, masked blocks included."""
    return op.computed_flops or op.flops


def planned_numbers(plan: Plan) -> PlannedNumbers:
    """The plan's numbers in a verdict."""
    return PlannedNumbers(
        peak_bytes=plan.memory.total,
        flops=sum(map(computed_flops, plan.operations)),
        hbm_bytes=sum(op.hbm_bytes for op in plan.operations),
        step_s=plan.step,
    )


def compare_collectives(
    plan: Plan | ServingPlan, compiled: Iterable[Collective], step: str | None = None
) -> tuple[CheckedCollective, ...]:
    """Totals of planned and compiled collectives, one row for each role and kind.

    Args:
        step: for a serving plan, `decode` or `prefill`.
    """
    planned = {(p.role, p.kind): p for p in planned_collectives(plan, step)}
    compiled_by_key: dict[tuple[str, str], list[Collective]] = {}
    for collective in compiled:
        key = (_role(collective, planned), collective.kind)
        compiled_by_key.setdefault(key, []).append(collective)
    rows = []
    for key in {**planned, **compiled_by_key}:
        rows.append(_row(key, planned.get(key), compiled_by_key.get(key, [])))
    return tuple(rows)


def _row(
    key: tuple[str, str], planned: PlannedCollective | None, compiled: list[Collective]
) -> CheckedCollective:
    n_compiled = 0
    compiled_bytes = 0
    asynchronous_bytes = 0
    for collective in compiled:
        n_bytes = collective.received_bytes * collective.n_runs
        n_compiled += collective.n_runs
        compiled_bytes += n_bytes
        if collective.form != "sync":
            asynchronous_bytes += n_bytes
    planned_n = 0
    planned_bytes = 0.0
    if planned:
        planned_n = planned.n
        planned_bytes = planned.received_bytes
    return CheckedCollective(
        role=key[0],
        kind=key[1],
        planned_n=planned_n,
        planned_bytes=planned_bytes,
        compiled_n=n_compiled,
        compiled_bytes=float(compiled_bytes),
        asynchronous=asynchronous_bytes / compiled_bytes if compiled_bytes else 0.0,
    )


def _role(
    collective: Collective, planned_by_key: Mapping[tuple[str, str], PlannedCollective]
) -> str:
    """The planned role of a compiled collective, from its mesh axes.

    Two roles may share a collective: weights are gathered over `fsdp` and `context` together.
    Reductions over replicas of weights count as `data` traffic, whatever their axes.
    """
    kind = collective.kind
    operation, _ = scope(collective.op_name)
    if operation == "loss" or collective.joined_bytes <= units.bytes_per_element("fp32"):
        return "other"
    roles = {axis.split(".")[0] for axis in collective.axes}
    role = next((role for role in INSIDE_OUT if role in roles), "other")
    planned = [p for p in planned_by_key.values() if p.kind == kind]
    # Collectives of weights over several roles may be compiled as one for each of them.
    is_of_weights = bool(operation) and not {*operation.split("+")} & {ATTENTION, *ATTENTION_PARTS}
    if roles == {"context"} and is_of_weights:
        for candidate in planned:
            if roles < {*candidate.axes}:
                return candidate.role
    if len(roles) < 2 and (role, kind) in planned_by_key:
        return role
    for candidate in planned:
        if roles in candidate.each:
            return candidate.role
    for candidate in planned:
        if roles == {*candidate.axes}:
            return candidate.role
    # A gather of weights over several roles may be compiled as one gather for each of them. Gathers
    # in attention are of keys and values.
    if roles and kind == "all_gather" and operation != ATTENTION:
        for candidate in planned:
            if roles < {*candidate.axes}:
                return candidate.role
    if len(roles) < 2 and not (kind in REDUCTIONS and role in REPLICATED_ROLES):
        return role
    # A reduction over several roles may likewise be compiled as one reduce-scatter for each.
    is_scattered = kind != "all_reduce" and ("data", kind) not in planned_by_key
    return "fsdp" if is_scattered else "data"


def collective_differences(
    rows: Iterable[CheckedCollective], n_microbatches: int = 1
) -> tuple[Difference, ...]:
    """Differences between planned and compiled bytes, largest first.

    Differences below `NEGLIGIBLE_SHARE` of all planned bytes or below rounding are left out.
    """
    by_key = {(row.role, row.kind): row for row in rows}
    negligible = NEGLIGIBLE_SHARE * sum(row.planned_bytes for row in by_key.values())
    differences = []
    for row in by_key.values():
        n_bytes = row.compiled_bytes - row.planned_bytes
        rounding = ROUNDING_SHARE * max(row.planned_bytes, row.compiled_bytes)
        if row.role != "other" and abs(n_bytes) > max(rounding, negligible):
            text = _difference_text(row, by_key, n_microbatches)
            differences.append(Difference(text=text, bytes=n_bytes))
    return tuple(sorted(differences, key=lambda difference: -abs(difference.bytes)))


def _difference_text(
    row: CheckedCollective,
    by_key: Mapping[tuple[str, str], CheckedCollective],
    n_microbatches: int,
) -> str:
    kind = row.kind.replace("_", "-")
    planned = units.show_bytes(row.planned_bytes)
    compiled = units.show_bytes(row.compiled_bytes)
    scatters = by_key.get((row.role, "reduce_scatter"))
    reduces = by_key.get((row.role, "all_reduce"))
    if row.kind == "all_reduce" and scatters and scatters.compiled_bytes < scatters.planned_bytes:
        excess = units.show_bytes(row.compiled_bytes - row.planned_bytes)
        return f"{row.role}: {excess} more all-reduce: it replaces a planned reduce-scatter."
    if row.kind == "reduce_scatter" and reduces and reduces.compiled_bytes > reduces.planned_bytes:
        return f"{row.role}: {planned} of reduce-scatter planned, {compiled} remain in the program."
    if not row.planned_bytes:
        return f"{row.role}: {compiled} of {kind} that the plan does not have."
    text = f"{row.role}: {planned} of {kind} planned, {compiled} in the program"
    if row.role != "fsdp" or not 0 < row.compiled_bytes < row.planned_bytes:
        return f"{text}."
    if n_microbatches > 1:
        return f"{text}: arrays that are equal for all microbatches move once."
    return f"{text}: embedding and head weights that both passes need move once."


def recomputation_difference(planned: float, recomputed: float) -> Difference | None:
    """The difference, if any, that the compiler itself recomputes FLOPs to save memory."""
    if recomputed <= planned * ROUNDING_SHARE:
        return None
    return Difference(
        text=f"{units.show_rate(recomputed, 'FLOP')} are recomputed: the compiler had no room for "
        "some arrays and rematerializes them, in addition to the plan's remat.",
        bytes=0.0,
    )


def attention_difference(planned: float, compiled: float) -> Difference | None:
    """The difference, if any, that attention kernels compute more FLOPs than the plan counts."""
    if compiled <= planned * (1 + ROUNDING_SHARE):
        return None
    return Difference(
        text=f"attention: {units.show_rate(planned, 'FLOP')} planned, "
        f"{units.show_rate(compiled, 'FLOP')} in its kernels, which recompute scores in the "
        "backward pass and compute blocks on the diagonal in full.",
        bytes=0.0,
    )


def bytes_by_role(rows: Iterable[CheckedCollective]) -> tuple[dict[str, float], dict[str, float]]:
    """Bytes of collectives by role, summed over their kinds: (planned, compiled)."""
    planned: dict[str, float] = {}
    compiled: dict[str, float] = {}
    for row in rows:
        planned[row.role] = planned.get(row.role, 0.0) + row.planned_bytes
        compiled[row.role] = compiled.get(row.role, 0.0) + row.compiled_bytes
    return planned, compiled


def missing_roles(rows: Iterable[CheckedCollective]) -> list[str]:
    """Roles whose planned traffic, summed over kinds of collectives, is missing in the program."""
    planned, compiled = bytes_by_role(rows)
    negligible = NEGLIGIBLE_SHARE * sum(planned.values())
    roles = []
    for role, n_bytes in planned.items():
        if n_bytes > negligible and compiled[role] < MISSING_SHARE * n_bytes:
            roles.append(role)
    return roles
