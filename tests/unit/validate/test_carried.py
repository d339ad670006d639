"""The rows that come with the package: how many are runs, and why the rest are not."""

from __future__ import annotations

from collections import Counter

import pytest

from shardwise.validate import Run, SkippedRecord

REASONS = {
    "layout not published": 43,
    "layout contradicts the chips": 10,
    "no global batch": 10,
    "no step time": 7,
    "unknown FLOPs": 5,
    "batch does not divide": 2,
    "dimensions not published": 2,
    "unknown precision": 2,
    "unknown attention": 1,
}


def test_every_row_is_a_run_or_has_a_reason(rows: list[Run | SkippedRecord]) -> None:
    vtrain = [row for row in rows if row.id.startswith("vtrain")]
    assert (len(rows), len(vtrain)) == (1074 + 1301, 1301)
    assert all(isinstance(row, Run) for row in vtrain)
    assert len({row.id for row in rows}) == len(rows)


def test_reasons_why_rows_are_no_runs(refused: dict[str, SkippedRecord]) -> None:
    assert Counter(row.kind for row in refused.values()) == REASONS
    assert all(row.source != "not stated" for row in refused.values())


def test_which_figure_the_step_time_follows_from(runs: dict[str, Run]) -> None:
    assert Counter(run.measured_from for run in runs.values()) == {
        "step_time_s": 390 + 1301,
        "tokens_per_s_per_chip": 469,
        "tflops_per_chip": 61,
        "samples_per_s": 48,
        "mfu": 24,
    }


def test_tasks_and_kinds_of_models(runs: dict[str, Run]) -> None:
    published = [run for run in runs.values() if not run.id.startswith("vtrain")]
    assert Counter(run.task for run in published) == {"pretrain": 877, "lora": 96, "sft": 19}
    assert sum(run.config.is_moe for run in published) == 213 - 10  # ten are refused
    assert sum(run.packed for run in published) == 37
    assert Counter(run.framework for run in published).keys() == {
        "megatron", "deepspeed", "fsdp", "jax",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mb-26.08-deepseek-v4-flash-gb200-mxfp8-128", "mqa-latent-sparse"),
        ("bloom-648", "layout contradicts the chips: dp 8, tp 8, cp 1, pp 10"),
        ("fms-llama2-13b-a100-80-128", "no global batch: global_batch_seqs is not stated"),
        ("maxtext-v5p-1160b-3840", "dimensions not published: layers, d_model"),
        ("mlperf-v4.0-gpt3-google-v5p-1024", "no step time: measured is block_time_s"),
        ("llama3-405b-16384-s8192", 'only TFLOP/s is stated, counted as "unknown"'),
        ("mlperf-v5.1-llama31-8b-amd-mi355x-epyc-9575f-pytorch", "layout not published"),
        ("mlperf-v5.1-llama31-8b-nebius-nebius-b300-n1", 'unknown precision: "fp8|nvfp4"'),
        ("gpt-neox-20b-96", "1,538 sequences over 12 data ranks"),
        ("nemo-25.07-llama4-scout-gb200-64", "neither dp nor fsdp is stated"),
    ],
)
def test_reasons_are_worded(refused: dict[str, SkippedRecord], name: str, words: str) -> None:
    assert words in refused[name].reason
