"""Files and records of others: whatever is wrong with them is said in words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.errors import BadFile
from shardwise.strategy.mesh import Mesh
from shardwise.validate import Run, SkippedRecord, load, read
from tests.unit.validate.record import moe, record


def run_of(data: dict[str, Any]) -> Run:
    found = read(data)
    assert isinstance(found, Run), found
    return found


def test_a_good_record() -> None:
    run = run_of(record())
    assert run.layout.mesh == Mesh(data=4, tensor=2, pipe=2)
    assert (run.layout.n_microbatches, run.layout.sequence_parallel) == (8, True)
    # What the record states, and what its framework does by default.
    assert run.layout.overlap == ("grad_reduce", "param_gather", "tp_comm", "pipe_p2p")
    assert run.measured_step_s == 1.5


@pytest.mark.parametrize(
    ("measured", "seconds"),
    [
        ({"tokens_per_s_per_chip": 1000}, 64 * 4096 / 1000 / 16),
        ({"tokens_per_s_total": 32000}, 64 * 4096 / 32000),
        ({"samples_per_s": 32}, 2.0),
        ({"step_time_s": 1.0, "tokens_per_s_per_chip": 1000}, 1.0),
    ],
)
def test_step_time_comes_first_then_rates(measured: dict[str, float], seconds: float) -> None:
    assert run_of(record(measured=measured)).measured_step_s == pytest.approx(seconds)


def test_tflops_and_mfu_are_one_measurement() -> None:
    tflops = run_of(record(measured={"tflops_per_chip": 494.7}))
    mfu = run_of(record(measured={"mfu": 0.5}))
    assert tflops.measured_step_s == pytest.approx(mfu.measured_step_s)
    half = run_of(record(measured={"tflops_per_chip": 494.7}, flops_convention="causal_half"))
    assert half.measured_step_s < tflops.measured_step_s


@pytest.mark.parametrize(
    ("changes", "mesh", "split"),
    [
        ({"parallelism": {"dp": 16, "ep": 8}}, Mesh(data=2, expert=8), None),
        ({"parallelism": {"dp": 16, "fsdp": 16, "zero_stage": 3, "ep": 4}},
         Mesh(fsdp=4, expert=4), None),
        ({"parallelism": {"dp": 8, "tp": 2, "ep": 16}}, Mesh(expert=8, tensor=2), 1),
        ({"parallelism": {"dp": 8, "tp": 2, "ep": 4, "etp": 2}},
         Mesh(data=2, expert=4, tensor=2), None),
        ({"parallelism": {"dp": 8, "tp": 2, "ep": 4}}, Mesh(data=4, expert=2, tensor=2), 1),
        ({"parallelism": {"dp": 8, "tp": 2, "ep": 4}, "source": {"repo": "NVIDIA/other"}},
         Mesh(data=2, expert=4, tensor=2), None),
    ],
)  # fmt: skip
def test_experts_come_out_of_the_data_ranks(
    changes: dict[str, Any], mesh: Mesh, split: int | None
) -> None:
    layout = run_of(moe(**changes)).layout
    assert (layout.mesh, layout.expert_tensor) == (mesh, split)
    assert layout.expert_degree == changes["parallelism"]["ep"]


def test_an_unknown_module_or_array_is_told_and_not_counted() -> None:
    run = run_of(record(recompute={"policy": "selective-modules", "modules": ["mlp", "attn2"]}))
    assert run.layout.recomputed == ("gate", "up", "activation", "down")
    assert run.assumed["remat"] == "no part of a layer is known for attn2"
    custom = {"policy": "custom", "tensors": {"wq": "device", "mlpwi": "offload"}}
    kept = run_of(record(recompute=custom))
    assert "gate" not in kept.layout.recomputed
    assert kept.layout.offload == ("gate", "up")
    assert "wq" in kept.assumed["remat"]


def test_two_devices_of_a_chip_become_one() -> None:
    hardware = {"family": "tpu7x", "count": 16, "topology": "2x2x4", "devices_per_chip": 2}
    par = {"dp": 2, "fsdp": 16, "zero_stage": 3}
    layout = run_of(record(hardware=hardware, parallelism=par, micro_batch=2)).layout
    assert layout.mesh == Mesh(data=2, fsdp=8)
    assert (layout.micro_batch, layout.n_microbatches) == (4, 1)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"id": None}, "not stated: id."),
        ({"global_batch_seqs": None}, "no global batch"),
        ({"global_batch_seqs": 63}, "batch does not divide: 63 sequences over 4 data ranks"),
        ({"micro_batch": 3}, "16 sequences of a data rank in microbatches of 3"),
        ({"seq_len": "4k"}, "wrong value: seq_len is '4k', not a whole number"),
        ({"seq_len": 0}, "wrong value: seq_len 0 is not from 1"),
        ({"precision": "bf8"}, 'unknown precision: "bf8". Close: "fp8"'),
        ({"hardware__family": "H1000"}, 'unknown chip: "H1000". Close'),
        ({"hardware__count": 12}, "12 GPUs do not fill domains of 8"),
        ({"hardware__count": 32}, "layout contradicts the chips: dp 4, tp 2, cp 1, pp 2"),
        ({"parallelism": {}}, "layout not published: neither dp nor fsdp"),
        ({"parallelism": {"dp": 4}}, "layout not published: tp, cp, pp are not stated"),
        ({"parallelism__ep": 64}, "ep 64 with experts split 1 ways does not fit"),
        ({"parallelism__zero_stage": 4}, "zero 4 is not a stage of ZeRO"),
        ({"parallelism": [1]}, "wrong value: parallelism is [1], not an object"),
        ({"recompute__policy": "some"}, 'unknown recomputation: "some" is none of'),
        ({"recompute": {"policy": "custom", "tensors": {"context": "x"}}}, "context: x is none of"),
        ({"overlap__schedule": "zigzag"}, 'unknown schedule "zigzag"'),
        ({"model__layers": None}, "dimensions not published: layers."),
        ({"model__mlp_matrices": 4}, "mlp_matrices 4 is neither 2 nor 3"),
        ({"model__n_kv_heads": 3}, "n_kv_heads 3 does not divide n_heads 8"),
        ({"model__attention": "linear"}, 'unknown attention: "linear"'),
        ({"model__mamba": {"heads": 8}}, "mlp 0 are 0 blocks in 8 layers"),
        ({"model__layer_counts": {"mamba": 8}}, "not stated: model.mamba.heads"),
        ({"model__layer_counts": {"mamba": 8, "mlp": 1}}, "are 9 blocks in 8 layers"),
        ({"measured": {}}, "no step time: measured is nothing"),
        ({"measured": {"step_time_s": -1}}, "measured.step_time_s -1 is not a number above 0"),
        ({"measured": {"tflops_per_chip": 400}, "flops_convention": "none"}, "unknown FLOPs"),
        ({"measured": {"tflops_per_chip": 400}, "task": "lora"}, "unknown FLOPs: of LoRA"),
        ({"measured": {"mfu": 0.4}, "precision": "fp8"}, "of a peak unknown under fp8"),
        ({"peers": {"other": "fast"}}, "wrong value: peers.other is 'fast', not a number"),
    ],
)
def test_what_is_wrong_with_a_record(changes: dict[str, Any], words: str) -> None:
    found = read(record(**changes))
    assert isinstance(found, SkippedRecord)
    assert words in found.reason


@pytest.mark.parametrize("data", [None, 3, "x", [], [1]])
def test_a_record_that_is_no_object(data: object) -> None:
    found = read(data, 4)
    assert found == SkippedRecord(
        id="record 5", source="not stated", reason="broken record: it is not an object."
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ("[" * 200_000, "is not JSON"),
        ('{"id": 1}', "is not a JSON list of records"),
        ("3", "is not a JSON list of records"),
    ],
)
def test_a_file_that_is_no_list_of_records(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "rows.json"
    path.write_text(text)
    with pytest.raises(BadFile, match=words):
        load(path)


def test_a_file_that_is_not_there_or_not_text(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(BadFile, match="cannot be read"):
            load(path)
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe[]")
    with pytest.raises(BadFile, match="is not JSON"):
        load(tmp_path / "binary.json")


def test_a_file_of_both_schemas_keeps_its_order(tmp_path: Path) -> None:
    vtrain = {
        "id": "v", "source": "x data/ground_truth_multi.csv", "d_model": 1024, "n_heads": 16,
        "n_layers": 4, "size": "1B", "seq_len": 1024, "global_batch_seqs": 8, "micro_batch": 2,
        "tp": 1, "dp": 4, "pp": 1, "n_gpus": 4, "chip": "A100 single node", "schedule": "1F1B",
        "recompute": "full", "measured_step_ms": 250.0, "calculon_step_ms": None,
    }  # fmt: skip
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([record(), {"id": "empty"}, vtrain]))
    found = load(path)
    assert [row.id for row in found] == ["test-row", "empty", "v"]
    assert isinstance(found[1], SkippedRecord)
    assert isinstance(found[2], Run)
    assert (found[2].measured_step_s, found[2].peers) == (0.25, {})


_JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(10**20, 10**400), st.floats(),
    st.text(max_size=8), st.lists(st.integers(), max_size=2),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    st.sampled_from(["4x4", "9 slices of 4x4", "0x0", "7 pods of 0", "16x16", "0x0 Gb/s", "v5e"]),
)  # fmt: skip
_PATHS = [
    (part, key)
    for part, inside in moe().items()
    for key in (inside if isinstance(inside, dict) else [""])
]
_PATHS += [
    ("hardware", "topology"), ("hardware", "interconnect"), ("hardware", "devices_per_chip"),
    ("parallelism", "fsdp"), ("parallelism", "ep"), ("parallelism", "etp"),
    ("parallelism", "dcn_dp"), ("model", "mla"), ("model", "sliding_window"),
    ("model", "moe_every"), ("model", "shared_experts"), ("recompute", "tensors"),
    ("overlap", "schedule"), ("grad_accumulation", ""), ("notes", ""), ("flags", ""),
    ("peers", ""), ("assumed", ""), ("measured", "mfu"), ("measured", "memory_gib"),
]  # fmt: skip


@settings(max_examples=400, derandomize=True, deadline=None)
@given(
    st.sampled_from(["H100", "v5e", "tpu7x", "GB200"]),
    st.lists(st.tuples(st.sampled_from(_PATHS), _JUNK), min_size=1, max_size=3),
    st.booleans(),
)
def test_no_broken_record_makes_a_traceback(
    family: str, breaks: list[tuple[tuple[str, str], object]], drop: bool
) -> None:
    data = moe(hardware__family=family)
    for (part, key), junk in breaks:
        if not key:
            data[part] = junk
        elif isinstance(data.get(part), dict):
            data[part] = {k: v for k, v in data[part].items() if k != key}
            data[part] |= {} if drop else {key: junk}
    found = read(data)
    if isinstance(found, Run):
        assert found.layout.mesh.n_chips == found.system.n_chips
        assert found.layout.global_batch == found.job.batch
        assert 0 < found.measured_step_s < float("inf")
    else:
        assert len(found.reason) > 8


@settings(max_examples=100, derandomize=True, deadline=None)
@given(st.recursive(_JUNK, lambda inner: st.dictionaries(st.sampled_from(
    ["id", "model", "hardware", "measured_step_ms", "source", "family", "count", "layers"]
), inner, max_size=4)))  # fmt: skip
def test_no_other_json_makes_a_traceback(data: object) -> None:
    assert isinstance(read(data), SkippedRecord)
