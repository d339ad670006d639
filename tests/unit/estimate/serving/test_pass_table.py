"""Looked-up passes against computed ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.estimate.serving.load import Load
from shardwise.estimate.serving.pass_table import PassTable
from shardwise.simulate import Limits, Pool, Traffic, simulate
from shardwise.workload import Serve
from tests.hybrid import paired
from tests.unit.estimate.serving.engines import BUSY, REACHED, engine

FP8 = Serve(prompt=1024, output=512, weights="fp8", kv="bf16", compute="fp8")
ENGINES = {
    "dense": engine("llama3-70b", "h100:4", {"tensor": 4}, FP8, shares=REACHED, software=BUSY),
    "routed": engine("deepseek-v3", "h200:8", {"expert": 8}, FP8, shares=REACHED, software=BUSY),
    "scans": replace(
        engine("llama3-8b", "h100:2", {"tensor": 2}, shares=REACHED, software=BUSY),
        config=paired(),
    ),
    "windows": engine("gpt-oss-120b", "h100:2", {"tensor": 2}, shares=REACHED, software=BUSY),
}
TABLES = {name: PassTable(e) for name, e in ENGINES.items()}


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(sorted(ENGINES)),
    decode=st.integers(1, 512),
    context=st.integers(1, 100_000),
    prefill=st.integers(0, 8192),
    past=st.integers(0, 8192),
)
def test_a_looked_up_pass_is_the_computed_one(
    name: str, decode: int, context: int, prefill: int, past: int
) -> None:
    pairs = prefill * past + prefill * (prefill + 1) / 2
    keys = decode * context
    load = Load(
        n_decoding=decode,
        kv_tokens=keys,
        prefill_tokens=prefill,
        query_key_pairs=pairs,
        n_sampled=decode,
    )
    exact = ENGINES[name].pass_time(load).step_s
    assert TABLES[name].pass_s(decode, keys, prefill, pairs) == pytest.approx(exact, rel=0.03)


def test_a_pass_of_prompts_alone() -> None:
    exact = ENGINES["dense"].prefill(1, 2048).step_s
    found = TABLES["dense"].pass_s(0, 0, 2048, 2048 * 2049 / 2)
    assert found == pytest.approx(exact, rel=0.01)


def test_a_prompt_has_one_state_for_its_scan() -> None:
    """Not one for each of its tokens, as sequences that decode have."""
    exact = ENGINES["scans"].prefill(1, 2048)
    found = TABLES["scans"].pass_s(0, 0, 2048, 2048 * 2049 / 2)
    assert found - BUSY.pass_s == pytest.approx(exact.step_s - exact.host, rel=0.01)


def test_a_prompt_is_through_a_pipeline_after_all_its_stages() -> None:
    """Alone it takes as long as a pass of one prompt a stage, of which each has its own batch."""
    job = Serve(prompt=2000, output=500)
    pipeline = PassTable(engine("qwen2.5-32b", "v6e:4x4", {"pipe": 16}, job, software=BUSY))
    tokens = 2000
    pairs = tokens * (tokens + 1) / 2
    full_s = pipeline.pass_s(0, 0, 16 * tokens, 16 * pairs, [(tokens, 0)] * 16)
    assert pipeline.traverse_s(tokens, 0) == pytest.approx(full_s, rel=1e-6)
    assert pipeline.traverse_s(tokens, 0) > 2 * pipeline.pass_s(0, 0, tokens, pairs, [(tokens, 0)])
    assert TABLES["dense"].traverse_s(tokens, 0) == 0


def test_first_tokens_of_a_pipeline_wait_for_its_stages() -> None:
    job = Serve(prompt=2000, output=500)
    pipeline = engine("qwen2.5-32b", "v6e:4x4", {"pipe": 16}, job, software=BUSY)
    times = PassTable(pipeline)
    pool = Pool(times=times, limits=Limits(n_blocks=4000))
    for output in (1, 500):
        request = Traffic(
            arrival_s=np.array([0.0]), prompt=np.array([2000]), output=np.array([output])
        )
        columns = simulate(request, pool).columns
        assert columns["first_s"][0] == pytest.approx(times.traverse_s(2000, 0))
        assert columns["end_s"][0] >= columns["first_s"][0]
