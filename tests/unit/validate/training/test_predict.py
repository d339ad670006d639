"""What a run's task and software change in its prediction, and how wide the interval is."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import Any

import pytest

from shardwise.estimate.calibration import calibration
from shardwise.hardware import catalog_chip
from shardwise.validate import Run, SkippedRecord, load, read
from shardwise.validate.training.predict import Prediction, layout_step_of, predict
from shardwise.validate.training.software import framework_of, fusion_of
from tests.unit.validate.record import moe, record


def run_of(data: dict[str, Any]) -> Run:
    found = read(data)
    assert isinstance(found, Run), found
    return found


def told(run: Run) -> Prediction:
    found = predict(run)
    assert isinstance(found, Prediction), found
    return found


@functools.cache
def every() -> list[Run]:
    return [run for run in load() if isinstance(run, Run)]


def by_id(name: str) -> Run:
    return next(run for run in every() if run.id == name)


def test_only_figures_that_nobody_publishes_stop_a_prediction() -> None:
    """Every derivable run of the published rows is predicted, but where a chip has no figure."""
    published = [run for run in every() if not run.id.startswith("vtrain")]
    missing = [p for p in map(predict, published) if isinstance(p, SkippedRecord)]
    assert {p.id: p.kind for p in missing} == {
        "palm-540b-6144": "v4 has no figure for dcn.bandwidth"
    }


def test_the_interval_is_the_spread_of_the_chip() -> None:
    for name in ("deepseek-v3-2048", "tpur-v6e-gemma3-12b-512", "bloom-729", "vtrain-multi-2027"):
        run = by_id(name)
        found = told(run)
        spread = calibration(run.system.chip, framework_of(run)).spread
        assert spread > 0
        assert found.lower == found.predicted / (1 + spread)
        assert found.upper == found.predicted * (1 + spread)


def test_the_interval_knows_chip_and_framework_and_not_the_run() -> None:
    a100, other = by_id("vtrain-multi-2027"), by_id("sc21-145.6b-1536")
    widths = {run.id: told(run).upper / told(run).predicted - 1 for run in (a100, other)}
    assert widths[a100.id] == pytest.approx(widths[other.id])
    assert widths[a100.id] < calibration(a100.system.chip).spread  # of an unknown framework


def test_a_row_has_its_error_without_its_group() -> None:
    fitted = told(by_id("bloom-729"))
    assert fitted.left_out_err is not None
    assert fitted.left_out_err != fitted.err


def test_lora_has_no_gradients_of_weights() -> None:
    """Frozen weights: two passes' worth of products of three, no sums, no optimizer."""
    lora = by_id("automodel-llama3-70b-h100-8-lora")
    assert lora.task == "lora"
    one = layout_step_of(lora).time(calibration(catalog_chip("h100")), fusion_of(lora))
    whole = dataclasses.replace(lora, task="sft")
    other = layout_step_of(whole).time(calibration(catalog_chip("h100")), fusion_of(whole))
    assert one.update_s == 0.0
    assert other.update_s > 0
    assert one.traffic_s["data"] == 0.0
    assert 0.6 < told(lora).predicted / told(whole).predicted < 0.95


def test_lora_rows_are_predicted() -> None:
    lora = [run for run in every() if run.task == "lora"]
    assert len(lora) == 96
    assert all(isinstance(predict(run), Prediction) for run in lora)


def test_packed_documents_cost_less_attention() -> None:
    packed = next(run for run in every() if run.packed and run.job.seq >= 4096)
    whole = dataclasses.replace(packed, packed=False)
    assert told(packed).predicted < told(whole).predicted
    one, other = (
        layout_step_of(run).time(calibration(run.system.chip, framework_of(run)), fusion_of(run))
        for run in (packed, whole)
    )
    assert one.head_s == other.head_s
    assert one.traffic_s == other.traffic_s


def test_a_packed_row_is_one_whose_source_counts_no_attention() -> None:
    sft = {"task": "sft", "flops_convention": "no_attention", "measured": {"step_time_s": 1.0}}
    assert run_of(record(**sft)).packed
    assert not run_of(record(**{**sft, "task": "pretrain"})).packed
    assert not run_of(record(**{**sft, "flops_convention": "full"})).packed


def test_each_layer_of_multi_token_prediction_adds_the_same() -> None:
    run = by_id("mb-26.08-deepseek-v3-gb300-mxfp8-256")
    assert run.job.mtp_layers == 1
    jobs = [dataclasses.replace(run.job, mtp_layers=n) for n in (0, 1, 2, 3)]
    seconds = [told(dataclasses.replace(run, job=job)).predicted for job in jobs]
    steps = [b - a for a, b in itertools.pairwise(seconds)]
    assert 0 < steps[1] == pytest.approx(steps[2])
    assert steps[0] <= steps[1] * (1 + 1e-9)  # the head may hide behind a fuller stage at first


def test_tokens_sent_once_are_fewer() -> None:
    par = {"dp": 16, "ep": 16, "tp": 1, "cp": 1, "pp": 1}
    plain, once = (
        run_of(moe(parallelism=par, overlap={"moe_dispatcher": name}))
        for name in ("alltoall", "deepep")
    )
    assert (fusion_of(plain).send_once, fusion_of(once).send_once) == (False, True)
    one, other = (
        layout_step_of(r).time(calibration(catalog_chip("h100")), fusion_of(r))
        for r in (plain, once)
    )
    assert other.traffic_s["expert"] < one.traffic_s["expert"]


@pytest.mark.parametrize(
    ("changes", "word", "is_so"),
    [
        ({"source": {"repo": "NVIDIA/Megatron-LM"}, "date": "2022-01-01"}, "flash", False),
        ({"source": {"repo": "NVIDIA/Megatron-LM"}, "date": "2024-01-01"}, "flash", True),
        ({"source": {"repo": "pytorch/torchtitan"}}, "warp_attention", True),
        ({"source": {"repo": "pytorch/torchtitan"}}, "fused", False),
        ({"source": {"repo": "pytorch/torchtitan"}, "overlap": {"torch_compile": True}},
         "fused", True),
        ({}, "warp_attention", False),
        ({}, "fused", True),
        ({"overlap": {"cuda_graph": "full_iteration"}}, "captured", 1.0),
        ({"overlap": {"cuda_graph": "local", "cuda_graph_scope": ["attn"]}}, "captured", 0.5),
        ({"overlap": {"cuda_graph": "local", "cuda_graph_scope": ["moe_router"]}}, "captured", 0.0),
        ({"overlap": {"cuda_graph": "none"}}, "captured", 0.0),
    ],
)  # fmt: skip
def test_what_software_fuses(changes: dict[str, Any], word: str, is_so: float) -> None:
    assert getattr(fusion_of(run_of(record(**changes))), word) == is_so
