"""A plan and the program that the compiler made of it, number against number."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from shardwise import units
from shardwise.check.hlo.collectives import Collective
from shardwise.plan.collectives import PlannedCollective, planned_collectives
from shardwise.plan.value import Plan, Range
from shardwise.strategy.mesh import INSIDE_OUT

MISSING = 0.5  # of a role's planned bytes: with less in the program its traffic is missing
SLIGHT = 1e-3  # of all planned bytes: sums of norms, whose roles are not told apart
SAME = 0.02  # bytes that differ by less are no difference


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedNumbers:
    """Of one chip: bytes at the peak of the step, FLOPs of a step, seconds of it."""

    peak_bytes: float
    flops: float
    step_s: Range


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledSeconds:
    """A step by the compiler's estimated cycles (None where it has none), and by rooflines."""

    cycles: float | None
    roofline: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledNumbers:
    """Of one device, as the compiler has them. Memory and seconds are None where nothing is proved
    about them: on a compiler that is not the chip's own."""

    peak_bytes: int | None
    arguments_bytes: int
    temporaries_bytes: int | None
    capacity_bytes: float | None
    flops: float
    step_s: CompiledSeconds | None
    exposed_s: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedCollective:
    """All collectives of one kind for one role, in one step on one chip.

    Args:
        role: of the mesh axes that they run over; `other` of what no plan lists (sums of the loss
            and of the statistics of its softmax).
        planned_bytes, compiled_bytes: what the chip takes in.
        asynchronous: share of the bytes that the compiler moves beside other work.
    """

    role: str
    kind: str
    planned_n: int
    planned_bytes: float
    compiled_n: int
    compiled_bytes: float
    asynchronous: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Where program and plan part, in words; bytes that it is about, and seconds where known."""

    text: str
    bytes: float
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """One of the largest arrays at the peak, in the words of the model."""

    bytes: int
    shape: str
    category: str
    scope: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the compiler says of a plan.

    Args:
        name, hardware: of model and machine.
        compiler: `tpu`, `gpu` or `cpu`, whose compiler it was.
        fits: None where that compiler cannot say.
        verdict: `proved`, `does not fit`, `collectives missing`, or `not proved` with its reason
            in `note`.
        largest: arrays at the peak, the largest first.
        compile_s: seconds of lowering and compiling.
    """

    name: str
    hardware: str
    compiler: str
    fits: bool | None
    verdict: str
    note: str
    planned: PlannedNumbers
    compiled: CompiledNumbers | None
    collectives: tuple[CheckedCollective, ...]
    differences: tuple[Difference, ...]
    largest: tuple[Buffer, ...]
    compile_s: float
    versions: Mapping[str, str]

    @property
    def passed(self) -> bool:
        """Whether nothing that was checked failed."""
        return self.verdict == "proved"


def planned_numbers(plan: Plan) -> PlannedNumbers:
    """The plan's side."""
    return PlannedNumbers(
        peak_bytes=plan.memory.total,
        flops=sum(op.computed_flops or op.flops for op in plan.operations),
        step_s=plan.step,
    )


def held_against(plan: Plan, found: Iterable[Collective]) -> tuple[CheckedCollective, ...]:
    """Planned and compiled collectives side by side, by role and kind."""
    planned = {(p.role, p.kind): p for p in planned_collectives(plan)}
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
    if "/loss/" in one.op_name or one.joined_bytes <= units.bytes_per_element("fp32"):
        return "other"
    roles = {axis.split(".")[0] for axis in one.axes}
    if len(roles) < 2:
        return next((role for role in INSIDE_OUT if role in roles), "other")
    same = [p.role for p in planned.values() if p.kind == one.kind and roles == {*p.axes}]
    return same[0] if same else "data" if one.kind == "all_reduce" else "fsdp"


def differences(rows: Iterable[CheckedCollective]) -> tuple[Difference, ...]:
    """What the collectives of the program have that the plan has not, and the other way."""
    rows, found = list(rows), []
    for row in rows:
        apart = row.compiled_bytes - row.planned_bytes
        if row.role == "other" or abs(apart) <= SAME * max(row.planned_bytes, row.compiled_bytes):
            continue
        found.append(Difference(text=_words(row, rows), bytes=apart))
    return tuple(sorted(found, key=lambda d: -abs(d.bytes)))


def _words(row: CheckedCollective, rows: list[CheckedCollective]) -> str:
    """One difference in words."""
    kind = row.kind.replace("_", "-")
    planned, compiled = (units.show_bytes(b) for b in (row.planned_bytes, row.compiled_bytes))
    sums = next((r for r in rows if r.role == row.role and r.kind == "all_reduce"), None)
    scatter = next((r for r in rows if r.role == row.role and r.kind == "reduce_scatter"), None)
    if row.kind == "all_reduce" and scatter and row.compiled_bytes > row.planned_bytes:
        return (
            f"{row.role}: {units.show_bytes(row.compiled_bytes - row.planned_bytes)} are summed by "
            "all-reduce: the compiler took it in the place of a reduce-scatter."
        )
    if row.kind == "reduce_scatter" and sums and sums.compiled_bytes > sums.planned_bytes:
        return f"{row.role}: {planned} of reduce-scatter planned, {compiled} left as such."
    if row.role == "fsdp" and 0 < row.compiled_bytes < row.planned_bytes:
        return (
            f"fsdp: {planned} of {kind} planned, {compiled} in the program: what does not change "
            "from one microbatch to the next is moved once."
        )
    if not row.planned_bytes:
        return f"{row.role}: {compiled} of {kind} that the plan does not have."
    return f"{row.role}: {planned} of {kind} planned, {compiled} in the program."


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
