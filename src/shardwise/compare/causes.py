"""What makes a measured step longer than the planned one, or a plan longer than it has to be.

A gap of a group is explained by the first of its rules that holds. Faults of the program are those
of `check`, which are not searched again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypedDict

from shardwise.check.causes import planned_part
from shardwise.check.hlo.scopes import BLOCKS
from shardwise.check.user.fault import Fault
from shardwise.check.verdict import Verdict
from shardwise.compare import groups
from shardwise.compare.measured import MeasuredGroup
from shardwise.compare.planned import PlannedStep
from shardwise.compare.result import Cause
from shardwise.plan.schema.json_io import AnyPlan
from shardwise.plan.schema.serving import ServingPlan
from shardwise.profile.categories import COMMUNICATION, MATMUL, WORK
from shardwise.profile.host import COMPILATION as COMPILING
from shardwise.profile.result import MemoryPeak, OperationTime, Profile

SLOWER = "slower"  # FLOP/s planned and measured; without FLOPs, seconds
RECOMPUTED = "recomputed"  # seconds of recomputed matmuls
NOT_RECOMPUTED = "not recomputed"  # seconds of recomputed matmuls
UNPLANNED_COLLECTIVE = "unplanned collective"  # seconds
WEIGHTS_GATHERED = "weights gathered"  # seconds of a decoding pass
EXPOSED = "exposed"  # seconds of communication that is exposed
SLOWER_NETWORK = "slower network"  # seconds of all communication
HOST_BOUND = "host-bound"  # seconds; its name is what the host does: loading, dispatch, or neither
COMPILATION = "compilation"  # steps of the trace, and those in which a program is compiled
DEVICES_WAIT = "devices wait"  # seconds in which devices wait for each other in collectives
CALLBACKS = "host callbacks"  # seconds
OTHER_FLOPS = "other FLOPs"  # FLOPs of the products of a device
IDLE = "idle"  # seconds
COPIES = "copies"  # seconds
LOOPS = "loops"  # seconds
UNNAMED = "not in the plan"  # seconds
SHORT_OPERATIONS = "short operations"  # seconds of the mean operation
SMALL_BATCH = "small batch"  # sequences or tokens needed, and there
VOCABULARY = "vocabulary"  # shards of the vocabulary as the chip likes them, and as they are
MEMORY = "memory"  # bytes
TRAFFIC = "traffic"  # bytes
COMPILED_SLOWER = "compiled slower"  # seconds at peak rates

KINDS = (
    SLOWER, RECOMPUTED, NOT_RECOMPUTED, UNPLANNED_COLLECTIVE, WEIGHTS_GATHERED, EXPOSED,
    SLOWER_NETWORK, HOST_BOUND, COMPILATION, DEVICES_WAIT, CALLBACKS, OTHER_FLOPS, IDLE,
    COPIES, LOOPS, UNNAMED, SHORT_OPERATIONS, SMALL_BATCH,
    VOCABULARY, MEMORY, TRAFFIC, COMPILED_SLOWER,
)  # fmt: skip

OTHER_PROGRAM = 1.6  # ratio of FLOPs beyond which a trace may be of another program
LAUNCH_S = 20e-6  # operations shorter than this are mostly launches
DISPATCH_S = 2e-3  # the host takes less to start a program whose inputs are there
MOST = 0.5  # share of a gap that explains it
GATHER = "all_gather"
READING = "reading"  # weights, which takes longer than computing with them
SENDING = "sending"  # weights and gradients
SENT = ("fsdp", "data")  # roles over which they are sent
FORWARD = 0.2  # share of a gap of collectives that those of the forward pass alone explain
EMBEDDING = "embed"
MORE_MEMORY = 0.2  # above the planned memory, from which a program is told to need more
SMALL = 0.1  # share of a step from which on a plan's own weakness is told
NETWORK_NOISE = 1.25  # ratio of times of collectives that counts as equal
LANES = 128  # the vocabulary of a chip should be a multiple of it: lanes of a TPU, tiles of a GPU
WORSE_HEAD = 1.25  # ratio of the head's slowdown to that of other matmuls that has a cause
# What a strategy does to a step, and what it brings about: small arrays are copied and launched in
# as many operations as large ones, and gathered weights are copied.
_OF_STRATEGY = (SMALL_BATCH, WEIGHTS_GATHERED)
_CONSEQUENCES = (COPIES, LOOPS, IDLE, SHORT_OPERATIONS)
_OUTSIDE = {
    groups.BETWEEN: HOST_BOUND,
    groups.WAITING: DEVICES_WAIT,
    groups.CALLBACKS: CALLBACKS,
    groups.IDLE: IDLE,
    groups.COPIES: COPIES,
    groups.LOOPS: LOOPS,
    groups.OTHER_MATMULS: UNNAMED,
}

# By their largest part.
_NAMED = (
    groups.COPIES, groups.OTHER_MATMULS, groups.BETWEEN, groups.WAITING, groups.CALLBACKS,
)  # fmt: skip


class Pair(TypedDict):
    """The two numbers of a cause."""

    planned: float
    measured: float


def gap_cause(
    group: str,
    planned: PlannedStep,
    planned_s: float,
    measured: MeasuredGroup,
    profile: Profile,
    plan: AnyPlan,
    slowdown: float,
) -> Cause:
    """Why a group takes longer than planned.

    Args:
        slowdown: measured over planned seconds of the other matmuls.
    """
    gap_s = measured.seconds - planned_s
    pair: Pair = {"planned": planned_s, "measured": measured.seconds}
    if group == groups.BETWEEN and gap_s < SMALL * profile.step_s:
        return Cause(kind=IDLE, seconds=gap_s, group=group, **pair)
    if group in _OUTSIDE:
        name = measured.largest.name if group in _NAMED else ""
        if group == groups.BETWEEN and name == COMPILING:
            pair = {"planned": profile.steps, "measured": profile.compiled_steps}
            return Cause(kind=COMPILATION, seconds=gap_s, group=group, **pair)
        return Cause(kind=_OUTSIDE[group], seconds=gap_s, group=group, name=name, **pair)
    if group.endswith(groups.COMMUNICATION_GROUP):
        return _communication_cause(group, planned, gap_s, measured, profile, plan)
    if group == groups.ENDS and measured.seconds > WORSE_HEAD * slowdown * planned_s:
        shard = vocabulary_shard(plan)
        if shard % LANES:
            padded = -(-shard // LANES) * LANES
            return Cause(
                kind=VOCABULARY, seconds=gap_s, group=group, planned=padded, measured=shard
            )
    flops = planned.flops.get(group, 0.0)
    if flops:
        pair = {"planned": flops / planned_s, "measured": flops / measured.seconds}
    return Cause(kind=SLOWER, seconds=gap_s, group=group, name=measured.largest.name, **pair)


def ranked(causes: Iterable[Cause], step_s: float) -> list[Cause]:
    """Causes by seconds; one of the strategy comes before what it brings about.

    Args:
        step_s: seconds of the step, of which such a cause has to be more than a small share.
    """
    causes = list(causes)
    largest_s = max((c.seconds for c in causes if c.kind in _CONSEQUENCES), default=0.0)

    def place(cause: Cause) -> tuple[float, bool, float]:
        if cause.kind in _OF_STRATEGY and cause.seconds > SMALL * step_s:
            return -max(cause.seconds, largest_s), False, -cause.seconds
        return -cause.seconds, True, 0.0

    return sorted(causes, key=place)


def vocabulary_shard(plan: AnyPlan) -> float:
    """Entries of the vocabulary for each chip of `tensor`; a fraction if it does not divide."""
    return plan.model.vocab / plan.strategy.mesh.get("tensor", 1)


def _communication_cause(
    group: str,
    planned: PlannedStep,
    gap_s: float,
    measured: MeasuredGroup,
    profile: Profile,
    plan: AnyPlan,
) -> Cause:
    unplanned = [op for op in measured.operations if _is_unplanned(op, planned)]
    unplanned_s = sum(op.seconds for op in unplanned)
    if unplanned and unplanned_s > FORWARD * gap_s:
        kind = WEIGHTS_GATHERED if isinstance(plan, ServingPlan) else UNPLANNED_COLLECTIVE
        return Cause(
            kind=kind, seconds=gap_s, group=group, name=unplanned[0].name, measured=unplanned_s
        )
    traffic_s = sum(planned.traffic_s.values())
    if profile.communication_s <= NETWORK_NOISE * traffic_s:
        return Cause(
            kind=EXPOSED,
            seconds=gap_s,
            group=group,
            name=measured.largest.name,
            planned=measured.seconds - gap_s,
            measured=measured.seconds,
        )
    return Cause(
        kind=SLOWER_NETWORK,
        seconds=gap_s,
        group=group,
        name=measured.largest.name,
        planned=traffic_s,
        measured=profile.communication_s,
    )


def _is_unplanned(part: OperationTime, planned: PlannedStep) -> bool:
    """Whether a collective of the forward pass belongs to an operation without planned ones.

    An AllGather is one too where other kinds are planned, and no AllGather. Collectives of the
    backward pass may sum gradients, which plans list without their operations.
    """
    operation = planned_part(part.name.partition("+")[0])
    has_arrays = operation.partition(".")[0] in (*BLOCKS, EMBEDDING)
    if not has_arrays or part.phase != "forward":
        return False
    if operation not in planned.roles:
        return True
    return GATHER in part.collectives and GATHER not in planned.kinds.get(operation, ())


def plan_causes(plan: AnyPlan, planned: PlannedStep) -> Iterator[Cause]:
    """What makes the plan itself longer than it has to be."""
    if isinstance(plan, ServingPlan):
        yield from _serving_causes(plan)
        return
    matmuls = [op for op in plan.operations if not op.collective and op.math_s]
    math_s = sum(op.math_s for op in matmuls)
    total_s = sum(max(op.math_s, op.hbm_s) for op in matmuls)
    tokens = plan.workload.tokens_per_step / plan.hardware.n_chips
    # What the plan expects, of which peak rates are a part.
    win_s = (total_s - math_s) / total_s * sum(planned.seconds.get(g, 0.0) for g in planned.flops)
    if win_s > SMALL * planned.step_s:
        needed = tokens * sum(op.hbm_s for op in matmuls) / math_s
        yield Cause(kind=SMALL_BATCH, seconds=win_s, name=READING, planned=needed, measured=tokens)
    exposed = {role: planned.seconds.get(groups.communication_group(role), 0.0) for role in SENT}
    role = max(exposed, key=lambda name: exposed[name])
    traffic_s = plan.estimate.comm_s.get(role, 0.0)
    if exposed[role] > SMALL * planned.step_s and traffic_s > plan.estimate.compute_s:
        needed = tokens * traffic_s / plan.estimate.compute_s
        yield Cause(
            kind=SMALL_BATCH, seconds=exposed[role], name=SENDING, planned=needed, measured=tokens
        )


def _serving_causes(plan: ServingPlan) -> Iterator[Cause]:
    decode = plan.estimate.decode
    step_s = decode.step_s.expected
    gathers = [op for op in plan.operations if op.phase == "decode" and op.role == "fsdp"]
    if gathers or plan.strategy.servers.weights == "gathered":
        yield Cause(
            kind=WEIGHTS_GATHERED,
            seconds=decode.parts.get("fsdp", 0.0),
            name=max(gathers, key=lambda op: op.time_s).name if gathers else "",
            measured=decode.parts.get("fsdp", 0.0),
        )
    weights_s = decode.parts.get("weights", 0.0)
    reachable = min(decode.critical_batch, decode.max_batch)
    if weights_s > MOST * step_s and reachable >= 2 * decode.batch:
        win_s = weights_s * (1 - decode.batch / reachable)
        yield Cause(
            kind=SMALL_BATCH,
            seconds=win_s,
            name=READING,
            planned=reachable,
            measured=decode.batch,
        )


def memory_causes(plan: AnyPlan, profile: Profile) -> Iterator[Cause]:
    """A traced program that needs more memory than planned, with what holds most at its peak."""
    memory = profile.memory
    planned = plan.memory.total
    if memory is not None and memory.bytes > (1 + MORE_MEMORY) * planned:
        yield Cause(
            kind=MEMORY,
            seconds=0.0,
            name=_largest_arrays(memory),
            planned=planned,
            measured=memory.bytes,
        )


def _largest_arrays(memory: MemoryPeak) -> str:
    """The operation whose arrays take most of the memory at the peak; empty if none is known."""
    return memory.arrays[0].name if memory.arrays else ""


def profile_causes(profile: Profile) -> Iterator[Cause]:
    """What a trace says without a plan: operations that are too short, if they fill the step."""
    work_s = profile.step_s - profile.idle_s
    short = [
        op
        for op in profile.operations
        if op.category in (*WORK, COMMUNICATION) and 0 < op.seconds < LAUNCH_S * op.count
    ]
    n_operations = sum(operation.count for operation in short)
    short_s = sum(operation.seconds for operation in short)
    if short_s > MOST * work_s:
        # Between short programs the host only dispatches, unless that takes long.
        dispatch_s = profile.idle_s if profile.idle_s < DISPATCH_S else 0.0
        yield Cause(
            kind=SHORT_OPERATIONS,
            seconds=short_s + dispatch_s,
            planned=LAUNCH_S,
            measured=short_s / n_operations,
        )


def other_flops(planned: PlannedStep, profile: Profile) -> Cause | None:
    """That the products of a trace are not those of the plan, by their FLOPs; else None.

    Nothing is said where the trace does not know the FLOPs of all products.
    """
    products = [op.flops for op in profile.operations if op.category == MATMUL]
    known = [flops for flops in products if flops is not None]
    if not known or len(known) < len(products):
        return None
    pair: Pair = {
        "planned": sum(planned.flops.get(group, 0.0) for group in groups.MATMUL_GROUPS),
        "measured": sum(known),
    }
    if pair["planned"] <= OTHER_PROGRAM * pair["measured"] <= OTHER_PROGRAM**2 * pair["planned"]:
        return None
    return Cause(kind=OTHER_FLOPS, seconds=0.0, **pair)


def remat_causes(
    planned: PlannedStep, measured: Iterable[MeasuredGroup], step_s: float
) -> Iterator[Cause]:
    """Remat that is planned, and that the program does not do; or that only the program does."""
    planned_s = sum(planned.remat_s.values())
    measured_s = sum(group.remat_s for group in measured)
    pair: Pair = {"planned": planned_s, "measured": measured_s}
    if planned_s > SMALL * step_s and measured_s < SMALL * planned_s:
        yield Cause(kind=NOT_RECOMPUTED, seconds=planned_s, **pair)
    if measured_s - planned_s > SMALL * step_s:
        yield Cause(kind=RECOMPUTED, seconds=measured_s - planned_s, **pair)


def verdict_causes(verdict: Verdict) -> Iterator[Cause]:
    """What a verdict of `check` says: traffic, memory and FLOPs above the plan's, slow parts."""
    compiled = verdict.compiled
    flops = compiled.flops if compiled else verdict.planned.flops
    is_larger = False
    for deviation in verdict.deviations:
        pair: Pair = {"planned": deviation.planned, "measured": deviation.compiled}
        if not deviation.is_worse:
            continue
        if deviation.quantity == "memory":
            is_larger = True
            saves = flops < verdict.planned.flops * (1 - SMALL)
            kind = NOT_RECOMPUTED if saves else MEMORY
            yield Cause(kind=kind, seconds=0.0, name="memory", **pair)
        elif deviation.quantity == "FLOPs":
            yield Cause(kind=RECOMPUTED, seconds=0.0, name="FLOPs", **pair)
        elif deviation.quantity != "time":
            yield Cause(kind=TRAFFIC, seconds=0.0, name=deviation.quantity, **pair)
    if verdict.fits is False and not is_larger and verdict.required_bytes is not None:
        yield Cause(
            kind=MEMORY,
            seconds=0.0,
            name="memory",
            planned=verdict.planned.peak_bytes,
            measured=verdict.required_bytes,
        )
    for cause in verdict.causes:
        yield Cause(
            kind=COMPILED_SLOWER,
            seconds=cause.compiled_s - cause.planned_s,
            group=cause.part,
            name=cause.detail,
            planned=cause.planned_s,
            measured=cause.compiled_s,
        )


def fault_causes(faults: Iterable[Fault]) -> Iterator[Cause]:
    """The faults that `check` has found, in its order."""
    for fault in faults:
        yield Cause(
            kind=fault.kind,
            seconds=fault.seconds,
            group=groups.STEP,
            name=fault.scope or fault.subject or ", ".join(map(str, fault.arguments)),
            measured=fault.bytes,
        )
