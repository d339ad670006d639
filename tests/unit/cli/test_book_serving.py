"""The book's chapter on serving LLaMA-3-70B on v5e, by the commands that a reader would type.

Each test names a command line and a figure of section 8. Passes of the book have all communication
hidden: the lower end of a range, or `roofline` of a sweep. The book rounds 141 GB of weights to 140
and 163,840 bytes of cache a token to 160 kB, so figures agree to 4 %.
"""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from tests.golden.terminal import run

BOOK = 0.04
# Sequences that fit, of the 43 in each slice. With int4 weights embedding and head stay in 16
# bits, which takes the room of 2.3 sequences (2 tables of 128,256 x 8,192 by 1.5 bytes more).
FITTING = {"bf16": 43, "int8": 43, "int4": 40.7}
SLICES = [("bf16", "v5e:4x4", 16), ("int8", "v5e:2x4", 8), ("int4", "v5e:2x2", 4)]


def told(command: str) -> Any:
    """The document of a command."""
    said = run(*shlex.split(command), "--json")
    assert said.code == 0, said.err
    return json.loads(said.out)


def screen(command: str) -> str:
    """What a reader sees, on one line."""
    said = run(*shlex.split(command))
    assert said.code == 0, said.err
    return " ".join(said.out.split())


def rows(command: str) -> list[Any]:
    found: list[Any] = told(command)["rows"]
    return found


@pytest.mark.parametrize(("dtype", "machine", "chips"), SLICES)
def test_smallest_slices(dtype: str, machine: str, chips: int) -> None:
    # "the smallest topology is 4x4 in bf16, 4x2 in int8, 2x2 in int4", 43 sequences in each.
    said = screen(f"fit llama3-70b v5e --serve --dtype {dtype} --context 8192")
    assert f"fits on {machine} ({chips} chips)" in said
    (row,) = rows(f"sweep llama3-70b {machine} --serve --dtype {dtype} --context 8192 --peak")
    # Of usable, not of documented memory.
    assert row["max_batch"] == pytest.approx(FITTING[dtype], rel=0.08)


def test_17_ms_on_the_smallest_slice_of_each_dtype() -> None:
    for dtype, machine, _ in SLICES:
        sweep = f"sweep llama3-70b {machine} --serve --dtype {dtype} --context 8192 --batch 32"
        (row,) = rows(f"{sweep} --peak")
        assert row["step_s"]["lower"] == pytest.approx(17e-3, rel=BOOK)
    plan = "plan llama3-70b v5e:4x2 --serve --dtype int8 --context 8192 --batch 32 --peak"
    assert told(plan)["estimate"]["decode"]["step_s"]["lower"] == pytest.approx(17e-3, rel=BOOK)


def test_twice_the_chips_take_8_5_ms_at_the_same_throughput_per_chip() -> None:
    sweep = "sweep llama3-70b v5e:4x2,v5e:4x4 --serve --dtype int8 --context 8192 --batch 32 --peak"
    small, large = rows(sweep)
    assert large["step_s"]["lower"] == pytest.approx(8.5e-3, rel=BOOK)
    each = [row["roofline_tokens_per_s_per_chip"] for row in (small, large)]
    assert each == pytest.approx([235, 235], rel=BOOK)
    # Beyond the book: what is waited for on ICI costs the larger slice a fifth of that.
    assert large["tokens_per_s_per_chip"] < 0.85 * small["tokens_per_s_per_chip"]


@pytest.mark.parametrize(
    ("dtype", "machine", "per_chip"), [(d, m, 32 / 17e-3 / n) for d, m, n in SLICES]
)
def test_throughput_per_chip(dtype: str, machine: str, per_chip: float) -> None:
    sweep = f"sweep llama3-70b {machine} --serve --dtype {dtype} --context 8192 --batch 32 --peak"
    (row,) = rows(sweep)
    assert row["roofline_tokens_per_s_per_chip"] == pytest.approx(per_chip, rel=BOOK)


def test_a_full_memory_takes_19_ms() -> None:
    # HBM / W: "a model that fills memory takes 19 ms a step", whatever the slice.
    for dtype, machine, _ in SLICES:
        explain = f"explain llama3-70b {machine} --serve --dtype {dtype} --context 8192 --peak"
        full = told(explain)["batches"][-1]
        assert full["step_s"]["lower"] == pytest.approx(19e-3, rel=BOOK)


@pytest.mark.parametrize(
    ("dtype", "machine", "per_chip"),
    [("bf16", "v5e:4x4", 0.27), ("int8", "v5e:2x4", 0.55), ("int4", "v5e:2x2", 1.11)],
)
def test_queries_per_second_and_chip(dtype: str, machine: str, per_chip: float) -> None:
    # 43 sequences, 19 ms, 512 tokens; the book takes prompts for free, so other engines read them.
    explain = f"explain llama3-70b {machine} --serve --dtype {dtype} --context 8192 --peak"
    full = told(explain)["batches"][-1]
    chips = {m: n for _, m, n in SLICES}[machine]
    rate = full["batch"] / full["step_s"]["lower"] / 512 / chips
    # 38 to 42 of the book's 43 fit, see `FITTING`.
    assert rate == pytest.approx(per_chip * FITTING[dtype] / 43, rel=0.07)


def test_critical_batches() -> None:
    # 240 in bf16, 120 for int8 weights in bf16 arithmetic, 240 in int8.
    found = told("explain llama3-70b v5e:4x4 --serve --context 8192 --peak")["critical"]
    batches = {(c["weights"], c["compute"]): c["batch"] for c in found}
    for pair, batch in (
        (("bf16", "bf16"), 240),
        (("int8", "bf16"), 120),
        (("int8", "int8"), 240),
    ):
        assert batches[pair] == pytest.approx(batch, rel=0.01)


def test_tensor_parallelism_to_the_ici_bound() -> None:
    # F / alpha over two axes: 26, beyond which links bind while FLOPs do.
    explain = "explain llama3-70b v5e:4x4 --serve --context 8192 --batch 32 --peak"
    assert "Links keep up to 26 while FLOPs bind" in screen(f"{explain} -v")


def test_prompts_of_910_ms() -> None:
    plan = "plan llama3-70b v5e:4x4 --serve --context 8192 --batch 32 --peak"
    assert told(plan)["estimate"]["prefill"]["at_mfu"]["step_s"] == pytest.approx(0.91, rel=0.01)
    assert "917 ms at 40 % MFU" in screen(plan)
    assert "917 ms at 40 % MFU" in screen(plan.replace("plan", "explain"))


def test_about_three_engines_for_prompts_to_one_that_generates() -> None:
    explain = (
        "explain llama3-70b v5e:4x4 --serve --prompt 8192 --output 512 --batch 32 "
        "--fix tensor=16,kv=batch --peak"
    )
    assert told(explain)["prefill"]["at_mfu"]["servers"] == pytest.approx(3, rel=0.07)
    assert "2.8 at that MFU" in screen(explain)
    # On chips of any number the cheapest deployment for 3 requests/s has that ratio.
    plan = (
        "plan llama3-70b v5e --serve --prompt 8192 --output 512 --rate 3/s --disaggregate "
        "--ttft 60s --tpot 1s --fix tensor=16,pipe=1,context=1,fsdp=1,kv=batch --peak"
    )
    found = told(plan)["strategy"]
    assert (found["prefill"]["count"], found["servers"]["count"]) == (3, 1)
    assert "3 engines of tensor 16 (KV by batch) on v5e:4x4 for prefill" in screen(plan)


def test_latency_of_the_pareto_plot() -> None:
    # int8 on 4x4 at 2,048 tokens: 5.4 ms at batch 1, about a token a ms and chip at batch 120.
    base = "sweep llama3-70b v5e:4x4 --serve --dtype int8 --context 2048 --batch 1,120 --peak"
    one, many = rows(f"{base} --compute bf16")
    assert one["step_s"]["lower"] == pytest.approx(5.36e-3, rel=BOOK)
    assert many["roofline_tokens_per_s_per_chip"] == pytest.approx(892, rel=BOOK)


def test_caches_bind_at_every_batch_from_3557_tokens() -> None:
    explain = "explain llama3-70b v5e:4x4 --serve --dtype int8 --compute bf16 --peak"
    context = told(explain)["critical"][0]["kv_context"]
    assert context == pytest.approx(3557, rel=0.01)
