"""Waiting for other devices inside collectives, and what of it is transfer."""

from __future__ import annotations

import io
import math

import pytest

from shardwise.check.hlo.text import parse
from shardwise.profile.account import profile_devices
from shardwise.profile.costs import collective_groups
from shardwise.profile.devices import Device, Event, executions_of
from shardwise.profile.programs import Programs
from shardwise.profile.result import Profile
from shardwise.profile.waiting import with_waiting
from shardwise.report.profile import blocks
from shardwise.report.style import render
from tests.unit.profile.events import event as made_event
from tests.unit.profile.test_profile import assert_sums

US = 1e3  # nanoseconds
STEPS = 3
STEP_US = 100


def event(name: str, category: str, start_us: float, long_us: float, run: int | None) -> Event:
    times = (start_us * US, (start_us + long_us) * US)
    operation = ("mlp.up", "backward")
    return made_event(name, *times, operation=operation, category=category, run=run, is_named=True)


def device(number: int, work_us: float, numbered: bool = True, steps: int = STEPS) -> Device:
    """A device that computes for some time of each step, and joins the others in its rest."""
    events = []
    for step in range(steps):
        run = step if numbered else None
        start = step * STEP_US
        events.append(event("dot.1", "matmul", start, work_us, run))
        events.append(event("all-reduce.1", "communication", start + work_us, 90 - work_us, run))
    return Device(
        name=f"CPU {number}",
        kind="CPU",
        events=tuple(events),
        executions=tuple(executions_of(events)),
        programs=Programs({}),
    )


def account(*devices: Device) -> Profile:
    return profile_devices("trace", list(devices))


@pytest.mark.parametrize("numbered", [True, False])
def test_only_the_transfer_of_the_last_is_communication(numbered: bool) -> None:
    """One device comes to the collective 60 us before the other, and the transfer takes 10."""
    profile = account(device(0, 20, numbered), device(1, 80, numbered))
    assert_sums(profile)
    seconds = {part.category: part.seconds for part in profile.categories if part.seconds}
    expected = {"matmul": 50e-6, "communication": 10e-6, "wait": 30e-6, "host": 10e-6}
    assert seconds == pytest.approx(expected)
    assert profile.communication_s == pytest.approx(10e-6)
    assert profile.waiting_s == pytest.approx(30e-6)
    assert profile.operations_share == pytest.approx(0.9)
    waits = [part for part in profile.operations if part.category == "wait"]
    assert [(part.name, part.phase, part.count) for part in waits] == [("mlp.up", "backward", 0.5)]
    text = " ".join(render(blocks(profile, ""), io.StringIO()).split())
    assert "Look first at mlp.up: 30.0 us of waiting for each other" in text
    assert "comms 10.0 us: 0 s hidden by compute" in text


def test_one_device_waits_for_none() -> None:
    profile = account(device(0, 20))
    assert profile.waiting_s == 0
    assert profile.communication_s == pytest.approx(70e-6)


def test_runs_that_a_trace_lacks_are_told_by_their_times() -> None:
    """The trace of the second device ends a step earlier: its collectives wait all the same."""
    devices = [device(0, 20, numbered=False), device(1, 80, numbered=False, steps=STEPS - 1)]
    early, late = with_waiting(devices, {})
    waits = [event.waiting_ns / US for event in early.events if event.name == "all-reduce.1"]
    assert waits == [60, 60, 0]
    assert not any(event.waiting_ns for event in late.events)


def test_the_devices_of_a_group_wait_for_each_other_alone() -> None:
    devices = [device(number, work) for number, work in enumerate((20, 40, 60, 80))]
    waiting = with_waiting(devices, {"all-reduce.1": [[0, 1], [2, 3]]})
    waits = [d.events[1].waiting_ns / US for d in waiting]
    assert waits == [20, 0, 20, 0]


def test_hidden_time_is_no_rounding_error() -> None:
    """Times whose sums differ in their last digits: nothing is hidden, not -1e-23 s."""
    odd = [device(0, 20 + math.pi / 7), device(1, 80 + math.e / 9)]
    profile = account(*odd)
    assert profile.hidden_s == 0
    assert_sums(profile)


HLO = """HloModule jit_step, num_partitions=4

ENTRY %main (p: f32[8]) -> f32[16] {
  %p = f32[8]{0} parameter(0)
  %all-gather.1 = f32[16]{0} all-gather(%p), dimensions={0}, replica_groups={{0,2},{1,3}}
  ROOT %permute.1 = f32[16]{0} collective-permute(%all-gather.1), source_target_pairs={{0,1},{1,2}}
}
"""


def test_groups_of_a_program() -> None:
    groups = collective_groups(parse(HLO), 4)
    assert groups == {"all-gather.1": [[0, 2], [1, 3]], "permute.1": [[0, 1, 2]]}
