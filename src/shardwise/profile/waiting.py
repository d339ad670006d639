"""Waiting in collectives: each begins when its device comes to it, and sends when all have come.

The device that comes last does not wait, so the shortest of the times that the devices of a group
spend in one run of a collective is that of the transfer, and the rest of each other is waiting. No
clock is compared, so the devices may be those of several hosts.
"""

from __future__ import annotations

from collections import Counter, defaultdict
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
    for name, places in _runs(devices):
        for group in _members(places, groups.get(name, ())):
            durations = {place: _duration(devices, place) for place in group}
            transfer = min(durations.values())
            waiting |= {place: duration - transfer for place, duration in durations.items()}
    if not waiting:
        return list(devices)
    return [
        replace(
            device,
            events=tuple(
                replace(event, waiting_ns=waiting[number, index])
                if (number, index) in waiting
                else event
                for index, event in enumerate(device.events)
            ),
        )
        for number, device in enumerate(devices)
    ]


def _runs(devices: Sequence[Device]) -> Iterator[tuple[str, list[Place]]]:
    """The runs of collectives: the name, and the event of each device.

    Runs are told apart by the number of the execution and by how often the collective ran in it;
    where executions have no numbers, only if all devices ran it equally often.
    """
    runs: dict[tuple[str, int | None, str, int], list[Place]] = defaultdict(list)
    totals: dict[tuple[str, int | None, str], set[int]] = defaultdict(set)
    for number, device in enumerate(devices):
        turns: Counter[tuple[str, int | None, str]] = Counter()
        for index, event in enumerate(device.events):
            if event.category == COMMUNICATION:
                key = (event.module, event.run, event.name)
                runs[*key, turns[key]].append((number, index))
                turns[key] += 1
        for key, count in turns.items():
            totals[key].add(count)
    for (module, run, name, _), places in runs.items():
        if len(totals[module, run, name]) == 1:
            yield name, places


def _members(places: list[Place], groups: Sequence[Sequence[int]]) -> Iterator[list[Place]]:
    """The events of each group of devices."""
    if not groups:
        yield places
        return
    for group in groups:
        if members := [place for place in places if place[0] in group]:
            yield members


def _duration(devices: Sequence[Device], place: Place) -> float:
    event: Event = devices[place[0]].events[place[1]]
    return event.end_ns - event.start_ns
