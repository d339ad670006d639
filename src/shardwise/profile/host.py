"""What the host does while devices wait: it compiles, dispatches programs, or loads their inputs.

JAX records the calls of its own functions, and so does grain; what else Python computes between
programs leaves no events.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

COMPILATION = "compilation"
DISPATCH = "dispatch"
LOADING = "loading"
STEP_NUMBER = "step_num"  # of a StepTraceAnnotation
HOST_PLANE = "/host:CPU"
# Annotations of datasets (grain's `SourceMapDataset.__getitem__`, tf.data's `Iterator::Map`), and
# copies of their batches to devices.
_LOADING = re.compile(r"Dataset|DataLoader|Iterator|load[_ ]?batch|DevicePut|BufferFromHost", re.I)
# Of JAX and of XLA; JAX has no events for the tracing that precedes them in a call.
_COMPILATION = re.compile(r"backend_compile|::Compile\b|lower_sharding_computation|CompileAndLoad")
_DISPATCH = re.compile(r"PjitFunction\(|ParseArguments|::Execute(Helper|Prepare)")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSpan:
    """An interval of a thread of the host; `kind` is `compilation`, `dispatch` or `loading`."""

    kind: str
    start_ns: float
    end_ns: float


def host_spans(plane: Any) -> tuple[HostSpan, ...]:
    """What a host's plane says of compilation, dispatch and loading, in order of its start."""
    return tuple(sorted(_spans(plane), key=lambda span: span.start_ns))


def step_marks(plane: Any) -> tuple[float, ...]:
    """The times at which the steps of `jax.profiler.StepTraceAnnotation` begin."""
    return tuple(
        sorted(
            raw.start_ns
            for line in plane.lines
            for raw in line.events
            if any(name == STEP_NUMBER for name, _ in raw.stats)
        )
    )


def _spans(plane: Any) -> Iterator[HostSpan]:
    for line in plane.lines:
        spans = []
        for raw in line.events:
            kind = host_work(raw.name)
            if kind and raw.duration_ns:
                end_ns = raw.start_ns + raw.duration_ns
                spans.append(HostSpan(kind=kind, start_ns=raw.start_ns, end_ns=end_ns))
        yield from spans
        yield from _compiling_calls(spans)


def _compiling_calls(spans: list[HostSpan]) -> Iterator[HostSpan]:
    """Calls of compiled functions that compile, up to its end: before it they trace and lower."""
    ends = sorted((span.end_ns, span.start_ns) for span in spans if span.kind == COMPILATION)
    for call in spans:
        if call.kind == DISPATCH and ends:
            index = bisect_right(ends, (call.end_ns, call.end_ns)) - 1
            if index >= 0 and ends[index][1] >= call.start_ns:
                yield HostSpan(kind=COMPILATION, start_ns=call.start_ns, end_ns=ends[index][0])


def host_work(name: str) -> str:
    """The kind of a host's event by its name; empty if it is none of them.

    >>> host_work("PjitFunction(step)"), host_work("SourceMapDataset.__getitem__")
    ('dispatch', 'loading')
    """
    if _COMPILATION.search(name):
        return COMPILATION
    if _DISPATCH.search(name):
        return DISPATCH
    return LOADING if _LOADING.search(name) else ""
