"""Passes of this package's engine on a machine that `hw measure` has measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import shardwise as sw
from shardwise.estimate.serving.compiled_shapes import CompiledShapes
from shardwise.estimate.serving.load import Load
from shardwise.estimate.serving.measured_rates import product_flops_per_s
from shardwise.estimate.serving.program_times import ProgramTimes
from shardwise.hardware.chip import with_values
from shardwise.hardware.figure import PRODUCT_DTYPES, PRODUCT_ROWS
from shardwise.plan.serving.rebuild import rebuild
from shardwise.search.serving.candidate import Server

SERVING = {
    "serving.pass": 1e-3,
    "serving.sequence": 1e-4,
    "serving.request": 1e-2,
    "serving.layer": 1e-4,
    "serving.keys": 5e9,
    "serving.keys_bf16": 5e9,
    "serving.attention": 4e10,
    "serving.activations": 1e10,
    "serving.logits": 1e8,
}
JOB = sw.Serve(prompt=128, output=64, batch=16, weights="bf16", kv="fp32", compute="fp32")
SHAPES = CompiledShapes(max_sequences=16, max_tokens=192)


def rate(dtype: str, rows: int) -> float:
    return (1 + PRODUCT_DTYPES.index(dtype)) * 1e10 * rows**0.5


def machine() -> sw.System:
    system = sw.hardware("cpu:1,hbm=16GB,hbm_bandwidth=20GB/s")
    peaks: dict[str, float] = {"peak.fp32": 8e10, "peak.bf16": 9e10}
    products = {f"products.{d}_{n}": rate(d, n) for d in PRODUCT_DTYPES for n in PRODUCT_ROWS}
    chip = with_values(system.chip, {**peaks, **products, **SERVING})
    return replace(system, chip=chip)


@pytest.fixture(scope="module")
def plan() -> sw.ServingPlan:
    return sw.plan(sw.model("smollm2-135m"), machine(), JOB)


@pytest.fixture(scope="module")
def server(plan: sw.ServingPlan) -> Server:
    return rebuild(plan)[1].server


def test_products_take_the_measured_time_and_lie_between() -> None:
    chip = machine().chip
    for rows in PRODUCT_ROWS:
        assert product_flops_per_s(chip, "bf16", rows) == pytest.approx(rate("bf16", rows))
    seconds = [2 * n / product_flops_per_s(chip, "int8", n) for n in (16, 40, 64)]
    assert seconds[1] == pytest.approx((seconds[0] + seconds[2]) / 2)
    assert product_flops_per_s(chip, "fp32", 4096) == pytest.approx(rate("fp32", 512))


def test_an_unembedding_has_rates_of_its_own_where_they_were_measured() -> None:
    chip = machine().chip
    assert product_flops_per_s(chip, "bf16", 4, head=True) == product_flops_per_s(chip, "bf16", 4)
    heads = {f"products.bf16_head_{n}": 5e10 for n in PRODUCT_ROWS}
    measured = with_values(chip, heads)
    assert product_flops_per_s(measured, "bf16", 4, head=True) == pytest.approx(5e10)
    assert product_flops_per_s(measured, "bf16", 4) == product_flops_per_s(chip, "bf16", 4)


def test_decoding_and_prompts_are_programs_of_their_own(server: Server) -> None:
    engine = server.engine
    decode = engine.decode(4, 200)
    prefill = engine.prefill(1, 100)
    pairs = 100 * 101 / 2
    both = engine.pass_time(
        Load(n_decoding=4, kv_tokens=800, prefill_tokens=100, query_key_pairs=pairs, n_sampled=5)
    )
    assert both.local_s == pytest.approx(decode.local_s + prefill.local_s)


def test_programs_compute_their_padding(server: Server) -> None:
    times = ProgramTimes(server.engine, 16)

    def pass_s(decode: int, context: int = 150, prompts: tuple[int, ...] = ()) -> float:
        overhead_s = SERVING["serving.sequence"] * (decode + len(prompts))
        chunks = [(tokens, 0) for tokens in prompts]
        return times.pass_s(decode, decode * context, sum(prompts), 0.0, chunks) - overhead_s

    assert pass_s(5) == pytest.approx(pass_s(16))
    assert pass_s(4) < pass_s(5)
    assert pass_s(4, 129) == pytest.approx(pass_s(4, 192))
    assert pass_s(4, 128) < pass_s(4, 129)
    assert pass_s(0, 0, (129,)) == pytest.approx(pass_s(0, 0, (192,)))
    host_s = SERVING["serving.pass"]
    assert pass_s(0, 0, (192, 192)) - host_s == pytest.approx(2 * (pass_s(0, 0, (192,)) - host_s))
    chunk_s = pass_s(0, 0, (100,)) - host_s
    assert pass_s(3, 150, (100,)) == pytest.approx(pass_s(3) + chunk_s)


def test_shapes_of_a_pass() -> None:
    assert list(SHAPES.programs([1] * 17 + [20, 30])) == [(16, 1), (1, 1), (4, 32)]
    assert list(SHAPES.programs([10, 12])) == [(4, 16)]
    assert list(SHAPES.programs([400])) == [(1, 192), (1, 192), (1, 16)]
    assert [float(SHAPES.padded(n)) for n in (0, 1, 17, 64, 65, 193)] == [0, 1, 32, 64, 128, 193]


def test_a_plan_keeps_the_rates_of_its_machine(plan: sw.ServingPlan) -> None:
    chosen = rebuild(plan)[1]
    assert chosen.tpot_s == pytest.approx(plan.estimate.tpot_s)
    assert plan.estimate.rates.name == "hw measure"
    assert plan.estimate.decode.parts["drawing"] == pytest.approx(16 * 49152 * 4 / 1e8)
    assert chosen.server.rates.overhead.request_s == SERVING["serving.request"]
    assert chosen.server.rates.overhead.max_tokens == 512


def test_measured_products_may_be_faster_than_the_measured_peak(tmp_path: Path) -> None:
    slow = replace(machine(), chip=with_values(machine().chip, {"peak.bf16": 1e9}))
    plan = sw.plan(sw.model("smollm2-135m"), slow, JOB)
    prefill = plan.estimate.prefill.step_s
    assert prefill.lower == prefill.expected
    path = tmp_path / "plan.json"
    plan.save(path)
    assert sw.load(path) == plan


def test_the_roofline_is_that_of_the_products_of_the_weights(server: Server) -> None:
    rates = server.engine.rates
    assert [rates.dtype(head=False), rates.dtype(head=True)] == ["bf16", "bf16"]
    narrow = replace(rates, job=replace(rates.job, weights="int8"))
    assert [narrow.dtype(head=False), narrow.dtype(head=True)] == ["bf16", "fp32"]
