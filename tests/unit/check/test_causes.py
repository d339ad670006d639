"""What makes a step slower than planned, from parts of both sides."""

from __future__ import annotations

import gzip

import pytest

from shardwise.check.causes import MAX_CAUSES, OUTSIDE, TimedParts, slower_parts, timed_parts
from shardwise.check.compiled_costs import analyze_program
from shardwise.check.compiling.result import Compiled, Memory, Place
from shardwise.check.compiling.targets import target_of
from shardwise.hardware import parse_system
from shardwise.plan.schema.common import Operation
from tests.unit.check.hlo.kept import FOLDER, mesh


def operation(name: str, time_s: float, role: str | None = None, **more: object) -> Operation:
    return Operation(
        name=name,
        phase="forward",
        expression="",
        count=1,
        flops=0.0,
        hbm_bytes=0.0,
        collective="all_gather" if role else None,
        role=role,
        network_bytes=0.0,
        time_s=time_s,
        math_s=0.0,
        hbm_s=0.0,
        hidden=True,
        **more,  # type: ignore[arg-type]
    )


PLANNED = (
    operation("mlp.down", 1.0),
    operation("mlp.down.d_h", 1.0),
    operation("attn.scores", 0.25),
    operation("attn.values.d_s", 0.25),
    operation("mlp.down", 0.5, role="fsdp", axes=("fsdp", "context")),
    operation("optimizer.adamw", 0.1),
)


def test_the_parts_with_the_most_seconds_beyond_the_plan() -> None:
    parts = TimedParts(
        seconds={
            "mlp.down": 2.5,
            "attn.core": 2.0,
            "waits for context": 0.9,
            OUTSIDE: 3.0,
            "optimizer": 0.05,
        },
        details={OUTSIDE: "copy of bf16[4,512], 8 times"},
    )
    found = slower_parts(PLANNED, parts)
    assert [cause.part for cause in found] == [OUTSIDE, "attn.core", "mlp.down"]
    assert len(found) == MAX_CAUSES
    assert (found[0].planned_s, found[0].detail) == (0.0, "copy of bf16[4,512], 8 times")
    assert [cause.planned_s for cause in found[1:]] == [0.5, 2.0]


def test_a_wait_is_held_against_the_transfers_of_its_innermost_role() -> None:
    found = slower_parts(PLANNED, TimedParts(seconds={"waits for context": 0.9}))
    assert [(cause.part, cause.planned_s) for cause in found] == [("waits for context", 0.5)]


def test_stages_of_a_pipeline_compute_while_the_plan_is_idle() -> None:
    parts = TimedParts(seconds={"mlp.down": 3.9})
    assert slower_parts(PLANNED, parts)
    assert not slower_parts(PLANNED, parts, idle_share=0.5)


def test_parts_add_up_to_the_step_of_a_compiled_program() -> None:
    system = parse_system("v5e:2x2")
    compiled = Compiled(
        constraints=(),
        name="step",
        target=target_of(system),
        mesh=mesh("train_v5e"),
        places=tuple(Place(coords=(x, y, 0)) for y in range(2) for x in range(2)),
        hlo_gz=(FOLDER / "train_v5e.hlo.gz").read_bytes(),
        memory=Memory(arguments=0, output=0, alias=0, temporaries=0, peak=0),
        cost={},
        options={},
        versions={},
        lower_s=0.0,
        compile_s=0.0,
        rss_bytes=0,
    )
    assert gzip.decompress(compiled.hlo_gz)
    program = analyze_program(compiled, system)
    parts = timed_parts(program)
    step_s = program.timings["roofline"].timeline.step_s
    assert sum(parts.seconds.values()) == pytest.approx(step_s)
    assert any(part.startswith("waits for ") for part in parts.seconds)
    assert parts.details[OUTSIDE]
