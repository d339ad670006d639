"""Export of the operations of a trace for Perfetto: a row for each line of each device."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from shardwise.check.timeline.trace import bar_event, trace_document, write_document
from shardwise.errors import BadFile
from shardwise.profile.device_account import NANOSECONDS
from shardwise.profile.devices import Device, Event
from shardwise.profile.result import Profile


def write_perfetto(path: str, devices: Sequence[Device], profile: Profile) -> None:
    """Write the operations of all devices, named as the model names them.

    Raises:
        BadFile: the file cannot be written.
    """
    rows = []
    for device in devices:
        rows += sorted({(device.name, event.line) for event in device.events})
    first_ns = min(device.events[0].start_ns for device in devices)
    bars = []
    for device in devices:
        for event in device.events:
            row = rows.index((device.name, event.line))
            start_s = (event.start_ns - first_ns) / NANOSECONDS
            seconds = (event.end_ns - event.start_ns) / NANOSECONDS
            about = {"op": event.name, "phase": event.operation[1], "program": event.module}
            bars.append(bar_event(_title(event), event.category, row, start_s, seconds, about))
    names = [f"{name} {line}" for name, line in rows]
    totals = {"step_s": profile.step_s, "compute_s": profile.compute_s}
    try:
        write_document(Path(path), trace_document(profile.trace, names, bars, totals))
    except OSError as error:
        raise BadFile(f'cannot write "{path}": {error.strerror}.') from None


def _title(event: Event) -> str:
    return event.operation[0] or event.name
