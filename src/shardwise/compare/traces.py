"""Two traces: what differs, and what makes one slower."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from shardwise.compare import groups
from shardwise.compare.measured import (
    REMAT,
    measured_groups,
    require_steps,
    steps_of_profile,
)
from shardwise.compare.pairs import GREW, pair_row, pair_rows, settings_that_differ
from shardwise.compare.result import Cause, PairComparison, PairRow
from shardwise.profile import categories
from shardwise.profile.categories import COMMUNICATION
from shardwise.profile.host import COMPILATION
from shardwise.profile.result import OperationTime, Profile

# Of an operation in the faster trace and in the slower one:
NEW_COLLECTIVE = "new collective"  # seconds
MORE_REMAT = "more remat"  # seconds, of the first and of the second
MORE_BYTES = "more bytes"  # bytes that collectives join on a device
MORE_FLOPS = "more FLOPs"  # FLOPs of a device
MORE_MEMORY = "more memory"  # bytes of a device, of the first and of the second
ORDER = (NEW_COLLECTIVE, MORE_REMAT, MORE_BYTES, MORE_FLOPS, MORE_MEMORY, GREW)
MOST = 0.5  # of a collective's time by which all of them grew, if it is a new one
LEAST_REMAT = 0.05  # of the slower step, by which it has more remat
OTHER_REMAT = 0.5  # of the slower trace's remat, which the other one has at most
MORE = 1.1  # ratio of FLOPs, or bytes, from which on a program has more


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
    explanations = [
        *_remat_cause((first, second), slower),
        *_trace_causes(*times, slower, noise),
        *_memory_cause(first, second),
    ]
    if abs(steps[1].typical_s - steps[0].typical_s) <= noise * steps[1 - slower].typical_s:
        others = _trace_causes(*times, 1 - slower, noise)  # chance says which one is slower
        explanations += [cause for cause in others if cause.kind == NEW_COLLECTIVE]
    return PairComparison(
        kind="traces",
        first=first.trace,
        second=second.trace,
        settings=tuple(settings_that_differ(_traits(first), _traits(second))),
        rows=(
            *pair_rows(*seconds),
            pair_row(groups.STEP, steps[0].typical_s, steps[1].typical_s),
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
        yield pair_row("FLOPs", flops[0], flops[1])
    if first.memory and second.memory:
        yield pair_row("memory", first.memory.bytes, second.memory.bytes)


def _remat_cause(profiles: tuple[Profile, Profile], slower: int) -> Iterator[Cause]:
    """What the slower trace computes again, if the other one does half as much at most."""
    first_s, second_s = (
        sum(part.seconds for part in profile.operations if part.phase == REMAT)
        for profile in profiles
    )
    slow_s, fast_s = (second_s, first_s) if slower else (first_s, second_s)
    more_s = slow_s - fast_s
    if more_s > LEAST_REMAT * profiles[slower].step_s and fast_s <= OTHER_REMAT * slow_s:
        yield Cause(
            kind=MORE_REMAT, seconds=more_s, group=REMAT, planned=first_s, measured=second_s
        )


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


def _growth(part: OperationSum, other: OperationSum) -> str:
    """How an operation differs from that of the other trace; empty if it does not take longer."""
    is_missing = not other.seconds and not other.traffic
    if part.is_collective and (is_missing or (other.traffic and _new_kind(part, other))):
        return NEW_COLLECTIVE
    if other.n_bytes and part.n_bytes > MORE * other.n_bytes:
        return MORE_BYTES
    if other.flops and part.flops > MORE * other.flops:
        return MORE_FLOPS
    return GREW if part.seconds > other.seconds else ""


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


def _communication_s(operations: Mapping[str, OperationSum]) -> float:
    return sum(part.seconds for part in operations.values() if part.is_collective)


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
