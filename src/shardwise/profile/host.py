"""What the host does while devices wait: it dispatches programs, or loads their inputs.

JAX records the calls of its own functions, and so does grain; what else Python computes between
programs leaves no events.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

DISPATCH = "dispatch"
LOADING = "loading"
HOST_PLANE = "/host:CPU"
# Annotations of datasets (grain's `SourceMapDataset.__getitem__`, tf.data's `Iterator::Map`), and
# copies of their batches to devices.
_LOADING = re.compile(r"Dataset|DataLoader|Iterator|load[_ ]?batch|DevicePut|BufferFromHost", re.I)
_DISPATCH = re.compile(r"PjitFunction\(|ParseArguments|::Execute(Helper|Prepare)")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSpan:
    """An interval of a thread of the host; `kind` is `dispatch` or `loading`."""

    kind: str
    start_ns: float
    end_ns: float


def host_spans(plane: Any) -> tuple[HostSpan, ...]:
    """The calls of a host's plane that dispatch programs or load data, in order of their start."""
    return tuple(sorted(_spans(plane), key=lambda span: span.start_ns))


def _spans(plane: Any) -> Iterator[HostSpan]:
    for line in plane.lines:
        for raw in line.events:
            kind = host_work(raw.name)
            if kind and raw.duration_ns:
                yield HostSpan(
                    kind=kind, start_ns=raw.start_ns, end_ns=raw.start_ns + raw.duration_ns
                )


def host_work(name: str) -> str:
    """The kind of a host's event by its name; empty if it is neither.

    >>> host_work("PjitFunction(step)"), host_work("SourceMapDataset.__getitem__")
    ('dispatch', 'loading')
    """
    if _DISPATCH.search(name):
        return DISPATCH
    return LOADING if _LOADING.search(name) else ""
