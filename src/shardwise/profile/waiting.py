"""Waiting in collectives: each begins when its device comes to it, and sends when all have come.

The device that comes last does not wait, so the shortest of the times that the devices of a group
spend in one run of a collective is that of the transfer, and the rest of each other is waiting.
Runs are counted rather than timed where they can be, so devices may be those of several hosts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from shardwise.profile.categories import COMMUNICATION
from shardwise.profile.devices import Device, Event

Groups = Mapping[str, Sequence[Sequence[int]]]  # instruction -> numbers of devices of each group
Place = tuple[int, int]  # number of a device, and of an event of it


def with_waiting(devices: Sequence[Device], groups: Groups) -> list[Device]:
    """The devices with the time that each of their collectives waits for the other devices.

    Args:
        devices: in the order of the program's partitions.
        groups: of those collectives that do not join all devices.
    """
    waiting: dict[Place, float] = {}
    for name, places in _collectives(devices):
        for group in groups.get(name) or [range(len(devices))]:
            for run in _runs([place for place in places if place[0] in group], devices):
                durations = {place: _duration(devices, place) for place in run}
                transfer = min(durations.values())
                waiting |= {place: duration - transfer for place, duration in durations.items()}
    return [
        replace(
            device,
            events=tuple(
                replace(event, waiting_ns=waiting[number, index])
                if waiting.get((number, index))
                else event
                for index, event in enumerate(device.events)
            ),
        )
        for number, device in enumerate(devices)
    ]


def _collectives(devices: Sequence[Device]) -> Iterator[tuple[str, list[Place]]]:
    """The name of each collective, and its events in one execution of its program.

    Where the trace does not number executions, they are those of all.
    """
    places: dict[tuple[str, int | None, str], list[Place]] = defaultdict(list)
    for number, device in enumerate(devices):
        for index, event in enumerate(device.events):
            if event.category == COMMUNICATION:
                places[event.module, event.run, event.name].append((number, index))
    for (_, _, name), of_name in places.items():
        yield name, of_name


def _runs(places: Sequence[Place], devices: Sequence[Device]) -> Iterator[Sequence[Place]]:
    """The events of a collective by its runs, one of each device.

    Devices that ran it equally often had the same runs; a trace may lack some of others, whose
    events belong together if they overlap in time.
    """
    by_device: dict[int, list[Place]] = defaultdict(list)
    for place in places:
        by_device[place[0]].append(place)
    if len({len(turns) for turns in by_device.values()}) == 1:
        yield from zip(*by_device.values(), strict=True)
        return
    run: dict[int, Place] = {}
    first_end = 0.0
    for place in sorted(places, key=lambda place: _event(devices, place).start_ns):
        event = _event(devices, place)
        if run and (place[0] in run or event.start_ns >= first_end):
            yield list(run.values())
            run = {}
        first_end = min(first_end, event.end_ns) if run else event.end_ns
        run[place[0]] = place
    if run:
        yield list(run.values())


def _event(devices: Sequence[Device], place: Place) -> Event:
    return devices[place[0]].events[place[1]]


def _duration(devices: Sequence[Device], place: Place) -> float:
    event = _event(devices, place)
    return event.end_ns - event.start_ns
