"""What the compiler makes of anybody's function: memory, FLOPs, collectives, seconds."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwise.check.array_names import own_scope, unnamed
from shardwise.check.compiled_costs import Read, draw, held_at_peak, numbers, read_program
from shardwise.check.compiling.result import Compiled, Failure, OutOfMemory
from shardwise.check.hlo.collectives import Collective
from shardwise.check.training import ROOFLINES, SHOWN, How, told, too_large
from shardwise.check.user.api import check_function, check_named
from shardwise.check.verdict import Buffer, CompiledNumbers
from shardwise.errors import BadInput, BadSharding, CheckFailed
from shardwise.hardware import parse_system

BESIDE = 3  # operations that a row names as what a collective overlaps


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCollective:
    """All collectives of one kind over the same mesh axes, in one run on one device.

    Args:
        axes: of the function's own mesh; none where groups are those of no whole axes.
        bytes: what a device takes in.
        asynchronous: share of the bytes that the compiler moves beside other work.
        beside: what runs meanwhile, by its scope, the most frequent first.
    """

    axes: tuple[str, ...]
    kind: str
    n: int
    bytes: float
    asynchronous: float
    beside: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FunctionReport:
    """What the compiler of a machine says of a function.

    Args:
        fits: None where that compiler cannot say.
        verdict: `compiles` or `does not fit`.
        mesh: axis -> devices.
        flops_by_scope: of products, by the scopes that the function's own code has opened.
        largest: arrays at the peak, the largest first.
    """

    name: str
    hardware: str
    compiler: str
    fits: bool | None
    verdict: str
    note: str
    mesh: Mapping[str, int]
    compiled: CompiledNumbers | None
    flops_by_scope: Mapping[str, float]
    collectives: tuple[FoundCollective, ...]
    largest: tuple[Buffer, ...]
    compile_s: float
    versions: Mapping[str, str]

    @property
    def passed(self) -> bool:
        """Whether it compiles, and fits as far as its compiler can say."""
        return self.verdict == "compiles"


def check_user(
    fn: Callable[..., Any], *args: Any, on: str, trace: str | Path | None = None
) -> FunctionReport:
    """Compile a function in this process and report it.

    Raises:
        As `shardwise.check`.
    """
    name = getattr(fn, "__name__", type(fn).__name__)
    return _report(name, on, check_function(fn, *args, on=on), trace)


def check_by_name(
    name: str, args: str, on: str, how: How, trace: str | Path | None = None
) -> FunctionReport:
    """Compile `module:function` in a process of its own and report it.

    The folder in which the command runs is searched for the module first.

    Raises:
        As `shardwise.check`, and BadInput where no such function is found.
    """
    result = check_named(
        name,
        args,
        on=on,
        folder=os.getcwd(),
        limits=how.limits,
        cache=how.folder,
        on_stage=how.on_stage,
    )
    return _report(name, on, result, trace)


def _report(
    name: str, on: str, result: Compiled | Failure, trace: str | Path | None
) -> FunctionReport:
    failure = result if isinstance(result, OutOfMemory) else None
    made = failure.program if failure else result
    if isinstance(made, Compiled):
        read = read_program(made, parse_system(on))
        if trace is not None and failure is None:
            draw(read, trace, f"{name} on {on}")
        return _of(name, on, read, failure)
    if failure is None:
        raise _refused(name, on, result)
    return FunctionReport(
        name=name,
        hardware=on,
        compiler=_platform(on),
        fits=False,
        verdict="does not fit",
        note=too_large(failure, None),
        mesh={},
        compiled=None,
        flops_by_scope={},
        collectives=(),
        largest=(),
        compile_s=0.0,
        versions={},
    )


def _platform(on: str) -> str:
    return parse_system(on).chip.kind


def _refused(name: str, on: str, result: Compiled | Failure) -> Exception:
    """The error of a function that does not compile, in the words of JAX or the compiler."""
    kind, text = type(result).__name__, getattr(result, "text", "")
    if kind == "ShardingError":
        return BadSharding(f"{name} on {on}: {text[:600]}")
    if getattr(result, "stage", "compiling") in ("building", "lowering"):
        return BadInput(f"{name} cannot be traced with these arguments: {text[:600]}")
    return CheckFailed(told(result)) if not isinstance(result, Compiled) else CheckFailed(text)


def _of(name: str, on: str, read: Read, failure: OutOfMemory | None) -> FunctionReport:
    compiled, target = read.compiled, read.compiled.target
    buffers = held_at_peak(read, unnamed)
    found = numbers(read, buffers)
    notes = [target.note, ROOFLINES if target.platform == "gpu" else ""]
    if failure:
        notes.insert(0, too_large(failure, found))
    return FunctionReport(
        name=name,
        hardware=on,
        compiler=target.platform,
        fits=False if failure else compiled.fits,
        verdict="does not fit" if failure else "compiles",
        note=" ".join(filter(None, notes)),
        mesh=compiled.mesh,
        compiled=found,
        flops_by_scope=_flops(read),
        collectives=() if failure else _collectives(read),
        largest=buffers[:SHOWN],
        compile_s=compiled.lower_s + compiled.compile_s,
        versions=compiled.versions,
    )


def _flops(read: Read) -> dict[str, float]:
    total: dict[str, float] = {}
    for op in read.ops:
        for op_name, n in op.cost.products:
            key = own_scope(op_name)
            total[key] = total.get(key, 0.0) + float(n * op.n_runs)
    return dict(sorted(total.items(), key=lambda pair: -pair[1]))


def _collectives(read: Read) -> tuple[FoundCollective, ...]:
    groups: dict[tuple[tuple[str, ...], str], list[Collective]] = {}
    for one in read.collectives:
        groups.setdefault((one.axes, one.kind), []).append(one)
    rows = [_row(axes, kind, ones, read) for (axes, kind), ones in groups.items()]
    return tuple(sorted(rows, key=lambda row: -row.bytes))


def _row(
    axes: tuple[str, ...], kind: str, ones: Sequence[Collective], read: Read
) -> FoundCollective:
    total = sum(one.received_bytes * one.n_runs for one in ones)
    moved = sum(one.received_bytes * one.n_runs for one in ones if one.form != "sync")
    seen: dict[str, int] = {}
    for one in ones:
        block = read.module.computations[one.computation]
        for name in one.overlapped:
            scope = own_scope(block.instructions[name].op_name)
            if scope:
                seen[scope] = seen.get(scope, 0) + one.n_runs
    return FoundCollective(
        axes=axes,
        kind=kind,
        n=sum(one.n_runs for one in ones),
        bytes=float(total),
        asynchronous=moved / total if total else 0.0,
        beside=tuple(sorted(seen, key=lambda scope: -seen[scope])[:BESIDE]),
    )
