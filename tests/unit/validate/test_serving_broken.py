"""Serving records of others: whatever is wrong with them is said in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.errors import BadFile
from shardwise.strategy.mesh import Mesh
from shardwise.validate import ServeRun, SkippedRecord, load_serving
from shardwise.validate.serving.runs import read
from tests.unit.validate.serving_record import routed, serving


def run_of(data: dict[str, Any]) -> ServeRun:
    found = read(data)
    assert isinstance(found, ServeRun), found
    return found


def test_a_good_record() -> None:
    run = run_of(serving())
    assert run.mesh == Mesh(tensor=4, data=2)
    assert run.measured == {"ttft_s": 0.1, "tpot_s": 0.01, "tokens_per_s": 1500}
    assert (run.weights, run.kv, run.compute) == ("fp8", "bf16", "fp8")
    assert not run.saturated


@pytest.mark.parametrize(
    ("parallelism", "mesh", "cut"),
    [
        ({"tp": 8}, Mesh(tensor=8), None),
        ({"tp": 4, "dp": 2}, Mesh(tensor=4, data=2), None),  # copies of the whole model
        ({"tp": 8, "ep": 8}, Mesh(tensor=8), 1),
        ({"tp": 8, "moe_tp": 2}, Mesh(tensor=8), 2),
        ({"tp": 4, "dp": 2, "ep": 8}, Mesh(tensor=4, expert=2), 1),
        ({"tp": 4, "dp": 2, "ep": 2}, Mesh(tensor=4, expert=2), None),
        ({"tp": 4, "dp": 2, "ep": 1, "moe_tp": 8}, Mesh(tensor=4, expert=2), None),
        ({"tp": 1, "dp": 8, "ep": 8}, Mesh(expert=8), None),
        ({"tp": 8, "attention_dp": True}, Mesh(expert=8), None),
        ({"tp": 4, "pp": 2, "ep": 4}, Mesh(tensor=4, pipe=2), 1),
    ],
)
def test_where_experts_lie(parallelism: dict[str, Any], mesh: Mesh, cut: int | None) -> None:
    run = run_of(routed(parallelism=parallelism))
    assert (run.mesh, run.expert_tensor) == (mesh, cut)


@pytest.mark.parametrize(
    ("changes", "figures"),
    [
        ({"phase": "prefill", "measured": {"tokens_per_s": 4096}}, {"prefill_s": 16 * 0.25}),
        ({"phase": "prefill", "measured": {"latency_ms": 500}}, {"prefill_s": 0.5}),
        ({"phase": "decode", "measured": {"latency_ms": 512}}, {"tpot_s": 0.002}),
        ({"phase": "decode", "measured": {"tpot_ms": 5, "tokens_per_s_per_user": 200}},
         {"tokens_per_s_per_user": 200}),
        ({"phase": "decode", "measured": {"tpot_ms": 5, "tokens_per_s_per_user": 150}},
         {"tpot_s": 0.005, "tokens_per_s_per_user": 150}),
        ({"measured": {"memory_gb": 2}}, {"memory_bytes": 2 * 1024**3}),
    ],
)  # fmt: skip
def test_figures_by_phase(changes: dict[str, Any], figures: dict[str, float]) -> None:
    assert run_of(serving(**changes)).measured == pytest.approx(figures)


@pytest.mark.parametrize(
    ("framework", "weights", "kv"),
    [("TensorRT-LLM 1.0", "fp8", "fp8"), ("TensorRT-LLM 1.0", "nvfp4", "fp8"),
     ("TensorRT-LLM 1.0", "mxfp4", "bf16"), ("TensorRT-LLM 1.0", "bf16", "bf16"),
     ("vLLM 0.19.0", "fp8", "bf16"), ("llama.cpp", "fp16", "fp16")],
)  # fmt: skip
def test_the_usual_cache(framework: str, weights: str, kv: str) -> None:
    run = run_of(serving(framework=framework, precision={"weights": weights}))
    assert run.kv == kv
    assert run.assumed["kv"] == f"{kv}, the usual default of the framework"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"id": None}, "not stated: id."),
        ({"phase": "chat"}, 'unknown phase: "chat"'),
        ({"phase": None}, "not stated: phase."),
        ({"input_len": None}, "lengths not stated: input_len and output_len"),
        ({"input_len": "1k"}, "wrong value: input_len is '1k', not a whole number"),
        ({"output_len": 0}, "wrong value: output_len 0 is not from 1"),
        ({"concurrency": None}, "load not stated: neither batch nor concurrency"),
        ({"precision": {}}, "not stated: precision.weights"),
        ({"precision__weights": "fp5"}, 'unknown precision: "fp5". Close: "fp8"'),
        ({"precision__kv": "q8"}, 'unknown precision: "q8"'),
        ({"hardware__family": "H1000"}, 'unknown chip: "H1000". Close'),
        ({"hardware__count": 4}, "tp 4, pp 1, dp 2 on 4 chips"),
        ({"parallelism": {}}, "layout not published: no degree is stated for 8 chips"),
        ({"parallelism": [1]}, "wrong value: parallelism is [1], not an object"),
        ({"model": "Llama-9"}, 'unknown model: "Llama-9" is not bundled'),
        ({"model__layers": None}, "dimensions not published: layers."),
        ({"model__attention": "linear"}, 'unknown attention: "linear"'),
        ({"model__sparse": {}}, "not stated: model.sparse.index_topk"),
        ({"model__linear_attention": {"value_heads": 4}}, "model.linear_attention.value_head_dim"),
        ({"measured": {}}, "no figure: measured is nothing"),
        ({"measured": {"hbm_util": 0.5}}, "no figure: measured is hbm_util"),
        ({"measured": {"mfu": 0.5}}, "no figure: measured is mfu"),
        ({"measured": {"ttft_ms": -1}}, "measured.ttft_ms -1 is not a number above 0"),
    ],
)
def test_what_is_wrong_with_a_record(changes: dict[str, Any], words: str) -> None:
    found = read(serving(**changes))
    assert isinstance(found, SkippedRecord)
    assert words in found.reason


@pytest.mark.parametrize(
    ("parallelism", "words"),
    [
        ({"tp": 8, "ep": 3}, "ep 3 over tp x dp of 8 ranks"),
        ({"tp": 8, "ep": 8, "moe_tp": 8}, "ep 8 and moe_tp 8 over tp x dp of 8 ranks"),
        ({"tp": 8, "ep": 16}, "ep 16 over tp x dp of 8 ranks"),
    ],
)
def test_experts_that_contradict_the_ranks(parallelism: dict[str, int], words: str) -> None:
    found = read(routed(parallelism=parallelism))
    assert isinstance(found, SkippedRecord)
    assert words in found.reason


def test_experts_of_a_model_that_has_none() -> None:
    found = read(serving(parallelism={"tp": 8, "ep": 8}))
    assert isinstance(found, SkippedRecord)
    assert found.reason == "layout contradicts the model: ep 8, but it has no experts."


@pytest.mark.parametrize("data", [None, 3, "x", [], [1]])
def test_a_record_that_is_no_object(data: object) -> None:
    found = read(data, 4)
    assert found == SkippedRecord(
        id="record 5", source="not stated", reason="broken record: it is not an object."
    )


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([serving(), {"id": "empty"}, serving(model="Llama-3.x-8B")]))
    good, empty, named = load_serving(path)
    assert isinstance(good, ServeRun)
    assert empty.id == "empty"
    assert isinstance(named, ServeRun)
    assert named.config.d_model == 4096
    path.write_text('{"id": 1}')
    with pytest.raises(BadFile, match="is not a JSON list of records"):
        load_serving(path)
    with pytest.raises(BadFile, match="cannot be read"):
        load_serving(tmp_path / "none.json")


_JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(10**20, 10**400), st.floats(),
    st.text(max_size=8), st.lists(st.integers(), max_size=2), st.integers(0, 16),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    st.sampled_from(["decode", "prefill", "mxfp4", "int4", "4x4", "GLM-5", "saturated"]),
)  # fmt: skip
_PATHS = [
    (part, key)
    for part, inside in routed().items()
    for key in (inside if isinstance(inside, dict) else [""])
]
_PATHS += [
    ("precision", "kv"), ("parallelism", "ep"), ("parallelism", "moe_tp"), ("batch", ""),
    ("parallelism", "attention_dp"), ("load", ""), ("weights_gib", ""), ("source", "table"),
    ("measured", "mfu"), ("measured", "latency_ms"), ("measured", "prefill_s"),
    ("measured", "tokens_per_s_per_user"), ("model", "sparse"), ("model", "linear_attention"),
    ("hardware", "topology"), ("notes", ""), ("flags", ""),
]  # fmt: skip


@settings(max_examples=400, derandomize=True, deadline=None)
@given(
    st.sampled_from(["H100", "v5e", "tpu7x", "GB200"]),
    st.sampled_from(["test-serve", "aic-glm-5-x", "trtllm10-qwen3-x", "jaxllm-deepseek-r1-x"]),
    st.lists(st.tuples(st.sampled_from(_PATHS), _JUNK), min_size=1, max_size=3),
)
def test_no_broken_record_makes_a_traceback(
    family: str, name: str, breaks: list[tuple[tuple[str, str], object]]
) -> None:
    data = routed(id=name, hardware__family=family)
    for (part, key), junk in breaks:
        if not key:
            data[part] = junk
        elif isinstance(data.get(part), dict):
            data[part] = {**data[part], key: junk}
    found = read(data)
    if isinstance(found, ServeRun):
        assert found.mesh.n_chips == found.system.n_chips
        assert all(0 < value < float("inf") for value in found.measured.values())
    else:
        assert len(found.reason) > 8
