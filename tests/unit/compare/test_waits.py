"""Time in which devices wait for each other or for the host, and traces of another program."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest

import shardwise as sw
from shardwise.compare.result import PairComparison, StepComparison
from shardwise.errors import BadInput
from shardwise.profile.result import OperationTime, Profile
from shardwise.report.compare import pair_headline, step_headline
from shardwise.report.profile import blocks
from shardwise.report.style import render
from tests.unit.compare.recorded_runs import plan, profile


def with_part(original: Profile, name: str, category: str, seconds: float) -> Profile:
    """The profile with one operation more; its steps all take as long."""
    step_s = original.step_s + seconds
    share = seconds / step_s
    part = OperationTime(
        name=name, phase="backward", category=category, count=1, seconds=seconds, share=share
    )
    operations = tuple(sorted([*original.operations, part], key=lambda op: -op.seconds))
    return replace(original, operations=operations, step_s=step_s, longest_step_s=1.01 * step_s)


def against_plan(measured: Profile) -> StepComparison:
    comparison = sw.compare(plan(fsdp=2), measured)
    assert isinstance(comparison, StepComparison)
    return comparison


def of_traces(first: Profile, second: Profile) -> str:
    pair = sw.compare(first, second)
    assert isinstance(pair, PairComparison)
    return pair_headline(pair)


def test_devices_that_wait_for_each_other() -> None:
    """Collectives are compared by their transfer; the waiting is a cause of its own."""
    broken = against_plan(with_part(profile(), "unembed", "wait", 0.2))
    assert broken.causes[0].kind == "devices wait"
    rows = {row.group: row.measured_s for row in broken.rows}
    assert rows["waiting for devices"] == 0.2
    clean = {row.group: row.measured_s for row in against_plan(profile()).rows}
    assert rows["fsdp communication"] == clean["fsdp communication"]
    words = "Biggest win: devices wait 200 ms for each other, most at unembed."
    assert step_headline(broken).endswith(words)


def test_callbacks_on_the_host() -> None:
    broken = against_plan(with_part(profile(), "mlp.up", "callback", 0.2))
    assert broken.causes[0].kind == "host callbacks"
    assert "the device waits 200 ms for callbacks on the host" in step_headline(broken)


def test_programs_that_are_compiled_at_every_step() -> None:
    compiling = replace(with_part(profile(), "compilation", "host", 0.3), compiled_steps=5)
    broken = against_plan(compiling)
    assert broken.causes[0].kind == "compilation"
    assert "a program is compiled in 5 of 5 steps (new shapes or a new function?)" in step_headline(
        broken
    )
    said = of_traces(profile(), compiling)
    assert (
        "most by compilation in 5 of 5 steps (new shapes or a new function?), 300 ms (none in A)."
        in said
    )


def test_what_doubles_is_said_although_steps_vary() -> None:
    waiting = with_part(profile(), "host", "host", 0.05)
    varying = replace(waiting, longest_step_s=1.2 * waiting.step_s)
    said = of_traces(profile(), varying)
    assert said.endswith(
        "steps vary by as much, and yet idle between programs 7.18 ms and 57.2 ms."
    )
    alike = replace(profile(), longest_step_s=1.2 * profile().step_s)
    assert "and yet" not in of_traces(profile(), alike)


def test_a_trace_of_fewer_devices_of_one_host_is_refused() -> None:
    with pytest.raises(BadInput, match="has 1 device and the plan 2"):
        sw.compare(plan(fsdp=2), replace(profile(), devices=1))
    many_hosts = sw.plan(sw.model("llama3-8b"), sw.hardware("v5e:8x8"), sw.Train(batch=64, seq=128))
    assert sw.compare(many_hosts, replace(profile(), kind="TPU", devices=4))


@pytest.mark.parametrize(("factor", "is_doubted"), [(0.1, True), (1.0, False), (5.0, True)])
def test_products_of_another_program_are_doubted(factor: float, is_doubted: bool) -> None:
    planned = 19_742_588_928  # FLOPs of the plan's products on a device
    matmuls = [op for op in profile().operations if op.category == "matmul"]
    flops = factor * planned / len(matmuls)
    operations = tuple(
        replace(op, flops=flops) if op.category == "matmul" else op for op in profile().operations
    )
    comparison = against_plan(replace(profile(), operations=operations))
    assert (comparison.doubt is not None) == is_doubted
    said = step_headline(comparison)
    assert ("is this a trace of the plan?" in said) == is_doubted
    assert ("of the planned speed" in said) != is_doubted


def test_combined_collectives_are_called_after_their_scopes_and_their_kind() -> None:
    combined = with_part(profile(), "mlp+attn+head", "communication", 0.3)
    operations = tuple(
        replace(op, collectives={"all_reduce": 1e6}) if "+" in op.name else op
        for op in combined.operations
    )
    lines = render(blocks(replace(combined, operations=operations), ""), io.StringIO())
    (row,) = [line for line in lines.splitlines() if "gradients" in line]
    assert row.split()[:3] == ["gradients:", "mlp,", "attn,"]
    assert "AllReduce" in row
    assert max(map(len, lines.splitlines())) <= 80
