"""Figures far from the plan's: what the verdict says of them, and what it names as the reason."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest

from shardwise.check.deviations import judge
from shardwise.check.serving import ServingVerdict
from shardwise.check.verdict import (
    Cause,
    CheckedCollective,
    CompiledNumbers,
    CompiledSeconds,
    PlannedNumbers,
    Verdict,
)
from shardwise.plan.schema.common import Range
from shardwise.report.check.plan import blocks, serving_blocks
from shardwise.report.style import render

PLANNED = PlannedNumbers(
    peak_bytes=10e9, flops=1e12, hbm_bytes=5e9, step_s=Range(lower=0.1, expected=0.2, upper=0.3)
)
COMPILED = CompiledNumbers(
    peak_bytes=10_500_000_000,
    arguments_bytes=0,
    temporaries_bytes=0,
    host_bytes=0,
    capacity_bytes=16e9,
    flops=1.05e12,
    hbm_bytes=9e9,
    step_s=CompiledSeconds(cycles=1.0, roofline=0.3),
    exposed_s={},
    by_category={},
)
CAUSES = (Cause(part="attn.core", detail="", planned_s=0.1, compiled_s=0.9),)


def traffic(role: str, planned: float, compiled: float) -> CheckedCollective:
    return CheckedCollective(
        role=role,
        kind="all_gather",
        planned_n=1,
        planned_bytes=planned,
        compiled_n=1,
        compiled_bytes=compiled,
        asynchronous=0.0,
    )


def judged(*rows: CheckedCollective, compiler: str = "tpu", **change: object) -> Verdict:
    verdict = Verdict(
        name="tiny",
        hardware="v5e:2x2",
        compiler=compiler,
        fits=True,
        verdict="",
        note="",
        planned=PLANNED,
        compiled=replace(COMPILED, **change),  # type: ignore[arg-type]
        collectives=(traffic("fsdp", 1e9, 1e9), *rows),
        differences=(),
        largest=(),
        xla_flags=(),
        compile_s=0.0,
        versions={},
    )
    return judge(verdict, CAUSES)


def text(verdict: Verdict) -> str:
    return " ".join(render(blocks(verdict), io.StringIO()).split())


def test_what_is_as_planned_is_proved() -> None:
    found = judged()
    assert (found.verdict, found.passed, found.deviations, found.causes) == ("proved", True, (), ())
    assert (found.fits, found.sends_as_planned, found.takes_planned_time) == (True, True, True)
    assert text(found).startswith(
        "Proved by XLA's TPU compiler: tiny on v5e:2x2 fits, sends the planned bytes within 10 % "
        "and takes no longer than its upper bound."
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"step_s": CompiledSeconds(cycles=None, roofline=0.7)},
            "time 700 ms, at most 300 ms planned (×2.33)",
        ),
        ({"peak_bytes": 11_500_000_000}, "memory 10.7 GiB, 9.31 GiB planned (+15%)"),
        ({"flops": 1.2e12}, "FLOPs 1.20 TFLOP, 1.00 TFLOP planned (+20%)"),
        ({"hbm_bytes": 85e9}, "HBM traffic 85.0 GB, 5.00 GB planned (×17)"),
    ],
)
def test_a_figure_far_above_the_plan_is_not_proved(change: dict[str, object], words: str) -> None:
    found = judged(**change)
    assert (found.verdict, found.passed) == ("differs", False)
    assert found.takes_planned_time is ("step_s" not in change)
    said = text(found)
    assert said.startswith("Not proved by XLA's TPU compiler: tiny on v5e:2x2 fits, ")
    assert f"off {words}" in said
    slower = "slower attn.core: 900 ms, 100 ms planned"
    assert (slower in said) == bool(found.causes) == ("peak_bytes" not in change)


def test_less_than_planned_holds_but_is_not_proved() -> None:
    found = judged(peak_bytes=7_600_000_000)
    assert (found.verdict, found.passed, found.causes) == ("holds", True, ())
    assert text(found).startswith("Holds by XLA's TPU compiler: tiny on v5e:2x2 fits, sends the")
    assert "off memory 7.08 GiB, 9.31 GiB planned (-24%)" in text(found)


def test_time_is_held_against_the_upper_bound_by_rooflines() -> None:
    """Cycles run high, and rounding is no difference."""
    assert judged(step_s=CompiledSeconds(cycles=9.0, roofline=0.304)).verdict == "proved"
    assert judged(step_s=CompiledSeconds(cycles=None, roofline=0.307)).verdict == "differs"


@pytest.mark.parametrize(
    ("row", "verdict"),
    [
        (traffic("data", 1e6, 7e9), "differs"),
        (traffic("data", 1e6, 9e6), "proved"),  # below 1 % of all traffic
        (traffic("tensor", 1e9, 1.15e9), "differs"),
        (traffic("tensor", 1e9, 0.85e9), "holds"),
        (traffic("tensor", 1e9, 0.4e9), "collectives missing"),
        (traffic("other", 0.0, 0.09e9), "proved"),
        (traffic("other", 0.0, 0.2e9), "differs"),
    ],
)
def test_traffic_is_compared_role_by_role(row: CheckedCollective, verdict: str) -> None:
    found = judged(row)
    assert found.verdict == verdict
    assert found.sends_as_planned is (verdict == "proved")


def test_the_cpus_compiler_is_not_asked_for_bytes_or_time() -> None:
    change = {"peak_bytes": None, "hbm_bytes": None, "step_s": None}
    found = replace(judged(traffic("data", 1e9, 2e9), compiler="cpu", **change), fits=None)
    assert (found.verdict, found.takes_planned_time) == ("proved", None)
    assert text(found).startswith(
        "Compiled by XLA's CPU compiler: tiny on v5e:2x2 sends the planned bytes within 10 %; "
        "memory and time are not checked."
    )


def test_a_serving_plan_begins_with_the_step_that_is_not_proved() -> None:
    prefill = judged(hbm_bytes=50e9)
    assert "fits, sends the planned bytes within 10 %" in text(prefill)
    assert "and has HBM traffic far above the plan's" in text(prefill)
    pair = ServingVerdict(name="tiny", hardware="v5e:2x2", decode=judged(), prefill=prefill)
    screen = render(serving_blocks(pair), io.StringIO())
    assert screen.startswith("The decode step is proved, the prefill step is not.\n")
    both = replace(pair, prefill=judged())
    assert render(serving_blocks(both), io.StringIO()).startswith("Proved by")
