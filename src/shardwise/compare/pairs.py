"""Two plans, two runs or two traces: what differs, and what makes one slower."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from shardwise.compare import groups
from shardwise.compare.causes import plan_causes
from shardwise.compare.inputs import RunLog
from shardwise.compare.measured import (
    measured_groups,
    require_steps,
    steps_of_profile,
    steps_of_run,
)
from shardwise.compare.planned import PlannedStep, planned_step
from shardwise.compare.result import Cause, PairComparison, PairRow, Setting
from shardwise.errors import BadInput
from shardwise.plan.schema.json_io import AnyPlan
from shardwise.plan.schema.serving import ServingPlan
from shardwise.plan.schema.training import LAYOUT_FIELDS, Plan
from shardwise.profile import categories
from shardwise.profile.categories import COMMUNICATION
from shardwise.profile.host import COMPILATION
from shardwise.profile.result import OperationTime, Profile

# Of an operation in the faster trace and in the slower one:
NEW_COLLECTIVE = "new collective"  # seconds
MORE_BYTES = "more bytes"  # bytes that collectives join on a device
MORE_FLOPS = "more FLOPs"  # FLOPs of a device
MORE_MEMORY = "more memory"  # bytes of a device, of the first and of the second
GREW = "grew"  # seconds of a group, or of an operation, of the first and of the second
ORDER = (NEW_COLLECTIVE, MORE_BYTES, MORE_FLOPS, MORE_MEMORY, GREW)
MOST = 0.5  # of a collective's time by which all of them grew, if it is a new one
MORE = 1.1  # ratio of FLOPs, or bytes, from which on a program has more
MEMORY_PARTS = ("weights", "gradients", "optimizer", "activations", "kv_cache", "other")
LAST_STEPS = 10  # whose mean is the loss of a run


def compare_plans(first: AnyPlan, second: AnyPlan, names: tuple[str, str]) -> PairComparison:
    """Two plans for training, or two for serving.

    Raises:
        BadInput: one is for training, the other for serving.
    """
    if isinstance(first, ServingPlan) != isinstance(second, ServingPlan):
        raise BadInput(
            f"{names[0]} and {names[1]}: a plan for training and one for serving have no step in "
            "common."
        )
    steps = (planned_step(first), planned_step(second))
    rows = _pair_rows(steps[0].seconds, steps[1].seconds)
    explanations = [*_of_slower((first, second), steps), *_grown(rows)]
    explanations.sort(key=lambda cause: -cause.seconds)
    memory = (first.memory, second.memory)
    figures = []
    for part in MEMORY_PARTS:
        row = _row(part, getattr(memory[0], part), getattr(memory[1], part))
        if row.first or row.second:
            figures.append(row)
    figures.append(_row("memory", memory[0].total, memory[1].total))
    rates = (first.estimate.tokens_per_s_per_chip, second.estimate.tokens_per_s_per_chip)
    figures.append(_row("tokens/s/chip", *rates))
    if isinstance(first, ServingPlan) and isinstance(second, ServingPlan):
        figures.append(_row("ttft", _latency(first, "ttft_s"), _latency(second, "ttft_s")))
        figures.append(_row("tpot", _latency(first, "tpot_s"), _latency(second, "tpot_s")))
    return PairComparison(
        kind="plans",
        first=names[0],
        second=names[1],
        settings=tuple(_settings(_choices(first), _choices(second))),
        rows=(*rows, _row(groups.STEP, steps[0].step_s, steps[1].step_s)),
        figures=tuple(figures),
        causes=tuple(explanations),
    )


def _of_slower(
    plans: tuple[AnyPlan, AnyPlan], steps: tuple[PlannedStep, PlannedStep]
) -> Iterator[Cause]:
    """What makes the slower plan longer than it has to be, and does not concern the faster one."""
    slower = 0 if steps[0].step_s > steps[1].step_s else 1
    faster_kinds = {cause.kind for cause in plan_causes(plans[1 - slower], steps[1 - slower])}
    for cause in plan_causes(plans[slower], steps[slower]):
        if cause.kind not in faster_kinds:
            yield cause


def compare_runs(first: RunLog, second: RunLog) -> PairComparison:
    """Two training runs: step time with its spread, tokens/s, memory, and loss at the same step."""
    steps = (steps_of_run(first.records), steps_of_run(second.records))
    common = {record.step for record in first.records} & {record.step for record in second.records}
    figures = []
    if common:
        last = sorted(common)[-LAST_STEPS:]
        figures.append(_row("loss", _mean_loss(first, last), _mean_loss(second, last)))
    tokens = (_tokens_per_step(first), _tokens_per_step(second))
    rates = (tokens[0] / steps[0].typical_s, tokens[1] / steps[1].typical_s)
    figures.append(_row("tokens/s", *rates))
    sizes = (first.memory_bytes, second.memory_bytes)
    if sizes[0] and sizes[1]:
        figures.append(_row("memory", sizes[0], sizes[1]))
    settings: list[Setting] = []
    if first.plan and second.plan:
        settings = list(_settings(_choices(first.plan), _choices(second.plan)))
    return PairComparison(
        kind="runs",
        first=first.path,
        second=second.path,
        settings=tuple(settings),
        rows=(_row(groups.STEP, steps[0].typical_s, steps[1].typical_s),),
        figures=tuple(figures),
        noise=max(steps[0].noise, steps[1].noise),
    )


def compare_traces(first: Profile, second: Profile) -> PairComparison:
    """Two traces: groups, and the operations that grew most.

    Raises:
        BadInput: one is no trace of steps.
    """
    for profile in (first, second):
        require_steps(profile)
    steps = (steps_of_profile(first), steps_of_profile(second))
    seconds = [
        {_group_name(name): part.seconds for name, part in measured_groups(profile, None).items()}
        for profile in (first, second)
    ]
    noise = max(steps[0].noise, steps[1].noise)
    times = (_operations(first), _operations(second))
    slower = int(steps[1].typical_s >= steps[0].typical_s)
    explanations = [*_trace_causes(*times, slower, noise), *_memory_cause(first, second)]
    if abs(steps[1].typical_s - steps[0].typical_s) <= noise * steps[1 - slower].typical_s:
        others = _trace_causes(*times, 1 - slower, noise)  # chance says which one is slower
        explanations += [cause for cause in others if cause.kind == NEW_COLLECTIVE]
    return PairComparison(
        kind="traces",
        first=first.trace,
        second=second.trace,
        settings=tuple(_settings(_traits(first), _traits(second))),
        rows=(
            *_pair_rows(*seconds),
            _row(groups.STEP, steps[0].typical_s, steps[1].typical_s),
        ),
        figures=tuple(_trace_figures(first, second)),
        noise=noise,
        causes=tuple(sorted(explanations, key=lambda cause: ORDER.index(cause.kind))),
    )


def _traits(profile: Profile) -> dict[str, str]:
    """What traces may differ in before anything is timed."""
    return {
        "devices": f"{profile.devices} {profile.kind}",
        "program": profile.module,
        "products": profile.dtype,
    }


def _group_name(group: str) -> str:
    """The name of a group of a trace, where there is no plan that could lack it."""
    return groups.MATMULS if group == groups.OTHER_MATMULS else group


def _trace_figures(first: Profile, second: Profile) -> Iterator[PairRow]:
    """FLOPs and memory of a device, where both traces state them."""
    flops = [sum(op.flops or 0.0 for op in profile.operations) for profile in (first, second)]
    if all(flops):
        yield _row("FLOPs", flops[0], flops[1])
    if first.memory and second.memory:
        yield _row("memory", first.memory.bytes, second.memory.bytes)


def _trace_causes(
    first: Mapping[str, OperationSum],
    second: Mapping[str, OperationSum],
    slower: int,
    noise: float,
) -> Iterator[Cause]:
    """Why the slower trace is slower: what it has and the other does not, then what grew.

    A collective that only one program has explains what follows from it, whatever it costs itself:
    the arrays behind it are larger, and matmuls compute more.

    Args:
        slower: which of the two it is, 0 or 1.
    """
    slow, fast = (second, first) if slower else (first, second)
    more_communication_s = _communication_s(slow) - _communication_s(fast)
    explanations = []
    for name, part in slow.items():
        other = fast.get(name, OperationSum())
        kind = _growth(part, other)
        grown_s = part.seconds - other.seconds
        if (
            kind == NEW_COLLECTIVE
            and not part.traffic
            and (more_communication_s < MOST * part.seconds)
        ):
            kind = GREW  # the other program has it under other names
        if not kind or (grown_s <= noise * part.seconds and kind == GREW):
            continue
        sizes = _sizes(kind, part, other)
        if not slower:
            sizes = sizes[::-1]
        cause = Cause(
            kind=kind,
            seconds=max(0.0, grown_s),
            group=name,
            name=_new_kind(part, other) if kind == NEW_COLLECTIVE else "",
            planned=sizes[0],
            measured=sizes[1],
        )
        explanations.append(cause)
    explanations.sort(key=lambda cause: (ORDER.index(cause.kind), -cause.seconds))
    yield from explanations


def _sizes(kind: str, part: OperationSum, other: OperationSum) -> tuple[float, float]:
    """What differs between two operations, in the unit of the cause: of the other and of `part`."""
    if kind == MORE_FLOPS:
        return other.flops, part.flops
    if kind == MORE_BYTES:
        return other.n_bytes, part.n_bytes
    if kind == NEW_COLLECTIVE and part.traffic:
        return 0.0, part.traffic[_new_kind(part, other)]
    return other.seconds, part.seconds


def _new_kind(part: OperationSum, other: OperationSum) -> str:
    """The kind of the largest collective that only `part` has; empty if none is known."""
    kinds = part.traffic.keys() - other.traffic.keys()
    return max(kinds, key=lambda kind: part.traffic[kind], default="")


def _memory_cause(first: Profile, second: Profile) -> Iterator[Cause]:
    """The memory of the second trace if it needs more, with what holds most at its peak."""
    if first.memory and second.memory and second.memory.bytes > MORE * first.memory.bytes:
        arrays = second.memory.arrays
        yield Cause(
            kind=MORE_MEMORY,
            seconds=0.0,
            name=arrays[0].name if arrays else "",
            planned=first.memory.bytes,
            measured=second.memory.bytes,
        )


def _communication_s(operations: Mapping[str, OperationSum]) -> float:
    return sum(part.seconds for part in operations.values() if part.is_collective)


def _growth(part: OperationSum, other: OperationSum) -> str:
    """How an operation differs from that of the other trace; empty if it does not take longer."""
    if part.is_collective and (not other.seconds or (other.traffic and _new_kind(part, other))):
        return NEW_COLLECTIVE
    if other.n_bytes and part.n_bytes > MORE * other.n_bytes:
        return MORE_BYTES
    if other.flops and part.flops > MORE * other.flops:
        return MORE_FLOPS
    return GREW if part.seconds > other.seconds else ""


def _choices(plan: AnyPlan) -> dict[str, str]:
    """What was chosen for a plan, as text by name."""
    strategy = plan.strategy
    choices = {"model": plan.model.name, "hardware": plan.hardware.name}
    choices |= {role: str(size) for role, size in strategy.mesh.items()}
    choices |= {f"{name} dtype": str(dtype) for name, dtype in strategy.precision.items()}
    if isinstance(plan, Plan):
        choices |= {"batch": str(plan.workload.batch), "seq": str(plan.workload.seq)}
        names = [name for name in LAYOUT_FIELDS if name != "recomputed"]
        choices |= {name: _show(getattr(plan.strategy, name)) for name in names}
        choices["remat"] = plan.strategy.remat
    else:
        decode = plan.estimate.decode
        choices |= {"batch": str(decode.batch), "context": str(plan.workload.context)}
        choices |= {"weights": plan.strategy.servers.weights, "KV split": plan.strategy.servers.kv}
        prefill = plan.strategy.prefill
        if prefill:
            choices["prefill engines"] = f"{prefill.count} × {prefill.hardware}"
    return choices


def _latency(plan: ServingPlan, name: str) -> float:
    """The median of the simulated requests if there are some, else the mean."""
    traffic = plan.estimate.traffic
    if traffic is None:
        return float(getattr(plan.estimate, name))
    return float(getattr(traffic, name).p50)


def _show(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _settings(first: Mapping[str, str], second: Mapping[str, str]) -> Iterator[Setting]:
    for name in dict.fromkeys([*first, *second]):
        if first.get(name) != second.get(name):
            yield Setting(name=name, first=first.get(name, ""), second=second.get(name, ""))


@dataclass(slots=True)
class OperationSum:
    """Operations of a step of one name: their seconds and FLOPs, and whether they communicate.

    Args:
        traffic: kind of a collective -> bytes of the arrays that it joins on a device.
    """

    seconds: float = 0.0
    flops: float = 0.0
    is_collective: bool = False
    traffic: dict[str, float] = field(default_factory=dict)

    @property
    def n_bytes(self) -> float:
        """Bytes of the arrays that all collectives join."""
        return sum(self.traffic.values())


def _operations(profile: Profile) -> dict[str, OperationSum]:
    """The operations by their names; compilers combine collectives differently in each program."""
    sums: dict[str, OperationSum] = {}
    for operation in profile.operations:
        name = operation.name
        is_collective = operation.category == COMMUNICATION
        if is_collective and "+" in name:
            name = "combined"
        name = _name(name, operation, profile)
        part = sums.setdefault(name, OperationSum(is_collective=is_collective))
        part.seconds += operation.seconds
        part.flops += operation.flops or 0.0
        for kind, n_bytes in operation.collectives.items():
            part.traffic[kind] = part.traffic.get(kind, 0.0) + n_bytes
    return sums


def _name(name: str, operation: OperationTime, profile: Profile) -> str:
    """What an operation is called: `mlp.up forward matmul`, or what is waited for."""
    what = " ".join(dict.fromkeys(filter(None, (name, operation.phase))))
    match operation.category:
        case categories.HOST:
            if name == COMPILATION:
                steps = f"{profile.compiled_steps:,} of {profile.steps:,} steps"
                return f"{COMPILATION} in {steps} (new shapes or a new function?)"
            work = "other code of the host" if name == categories.HOST else name
            return f"{groups.BETWEEN} for {work}"
        case categories.WAIT:
            return f"{groups.WAITING} at {what}"
        case categories.CALLBACK:
            return f"{groups.CALLBACKS} at {what}"
    return " ".join(dict.fromkeys((*what.split(), operation.category)))


def _pair_rows(first: Mapping[str, float], second: Mapping[str, float]) -> list[PairRow]:
    names = dict.fromkeys([*first, *second])
    rows = [_row(name, first.get(name, 0.0), second.get(name, 0.0)) for name in names]
    return sorted(rows, key=lambda row: -abs(row.change))


def _grown(rows: list[PairRow]) -> Iterator[Cause]:
    """The rows that take longer in the slower of the two, the largest first."""
    direction = 1 if sum(row.change for row in rows) >= 0 else -1
    for row in rows:
        if direction * row.change > 0:
            yield Cause(
                kind=GREW,
                seconds=abs(row.change),
                group=row.group,
                planned=row.first,
                measured=row.second,
            )


def _row(group: str, first: float, second: float) -> PairRow:
    return PairRow(group=group, first=first, second=second)


def _mean_loss(run: RunLog, steps: list[int]) -> float:
    losses = [record.loss for record in run.records if record.step in steps]
    return sum(losses) / len(losses)


def _tokens_per_step(run: RunLog) -> float:
    record = run.records[-1]
    return record.tokens_per_s * record.step_s
