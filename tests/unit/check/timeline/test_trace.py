"""The trace is valid, its rows do not overlap, and its sums are those of the timeline."""

import gzip
import itertools
import json
from collections import defaultdict

import pytest

from shardwise.check.timeline.schedule import simulate
from shardwise.check.timeline.steps import Await, Compute, Loop, Transfer
from shardwise.check.timeline.trace import chrome_trace, write_trace


def layers(trips):
    group = ("mlp.up", "forward")
    sent = {"operation": group, "kind": "all_gather", "bytes": 1e6}
    return (
        Loop(
            name="layers",
            trips=trips,
            body=(
                Transfer(
                    name="g", label="fsdp", form="async", engines=("x", "y"), seconds=3e-3, **sent
                ),
                Compute(name="fusion.1", operation=group, seconds=2e-3),
                Transfer(
                    name="t", label="tensor", form="sync", engines=("z",), seconds=1e-3, **sent
                ),
                Await(name="t"),
                Await(name="g"),
                Compute(name="fusion.2", operation=("mlp.down", "forward"), seconds=1e-3),
            ),
        ),
    )


def rows(trace):
    names = {
        e["tid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"
    }
    found = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            found[names[event["tid"]]].append(event)
    return found


def test_events_are_complete_and_rows_are_named():
    trace = chrome_trace(simulate(layers(3)), title="llama3-8b on v5e:16x16")
    assert json.loads(json.dumps(trace)) == trace
    assert set(rows(trace)) == {"TensorCore", "ICI x", "ICI y", "ICI z"}
    assert {e["ph"] for e in trace["traceEvents"]} == {"X", "M"}
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            assert event["ts"] >= 0
            assert event["dur"] > 0
            assert isinstance(event["pid"], int)
            assert isinstance(event["tid"], int)


def test_bars_are_named_by_the_planned_operation():
    core = {e["name"] for e in rows(chrome_trace(simulate(layers(1))))["TensorCore"]}
    assert core == {"mlp.up", "mlp.down", "wait for tensor: mlp.up"}
    assert {e["name"] for e in rows(chrome_trace(simulate(layers(1))))["ICI x"]} == {
        "fsdp all_gather: mlp.up"
    }


def test_slices_have_their_flops_and_bytes_and_the_core_its_name():
    step = Compute(
        name="dot", operation=("mlp.up", "forward"), seconds=1.0, flops=4e9, hbm_bytes=2e6
    )
    found = rows(chrome_trace(simulate((step,)), core="SMs"))
    (event,) = found["SMs"]
    assert (event["args"]["flops"], event["args"]["hbm_bytes"]) == (4e9, 2e6)


@pytest.mark.parametrize("cap", [10, 10**6])
def test_rows_do_not_overlap_and_the_core_is_filled(cap):
    line = simulate(layers(80), max_bars=cap)
    for name, events in rows(chrome_trace(line)).items():
        events.sort(key=lambda e: e["ts"])
        for one, after in itertools.pairwise(events):
            assert one["ts"] + one["dur"] <= after["ts"] + 1e-3, name
    core = rows(chrome_trace(line))["TensorCore"]
    assert sum(e["dur"] for e in core) == pytest.approx(line.step_s * 1e6)


def test_sums_of_the_bars_are_those_of_the_timeline():
    line = simulate(layers(80))
    found = rows(chrome_trace(line))
    computed = [e["dur"] for e in found["TensorCore"] if e["cat"] == "compute"]
    assert sum(computed) == pytest.approx(line.compute_s * 1e6)
    assert sum(e["dur"] for e in found["ICI x"]) == pytest.approx(line.busy_s["x"] * 1e6)
    waited = sum(e["dur"] for e in found["TensorCore"] if e["cat"] == "wait")
    assert waited == pytest.approx(sum(line.exposed_s.values()) * 1e6)


def test_a_deep_model_stays_small(tmp_path):
    line = simulate(layers(100_000))
    path = tmp_path / "trace.json.gz"
    write_trace(path, line)
    assert path.stat().st_size < 1_000_000
    trace = json.loads(gzip.decompress(path.read_bytes()))
    (rest,) = [e for e in rows(trace)["TensorCore"] if e["cat"] == "trips"]
    assert rest["args"]["trips"] == pytest.approx(100_000 - 20_000 / 7, rel=1e-2)
    write_trace(tmp_path / "trace.json", simulate(layers(2)))
    assert json.loads((tmp_path / "trace.json").read_text())["otherData"]["step_s"] > 0
