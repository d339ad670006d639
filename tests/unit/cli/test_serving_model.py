"""The engine's options of `serve` and `generate`."""

from __future__ import annotations

from pathlib import Path

import pytest

import shardwise as sw
from shardwise.cli.serving_model import EngineWords, read_engine_options, read_model
from shardwise.errors import BadInput
from shardwise.report.document import save
from tests.unit.serve.model_files.tiny import write_folder


def test_drafts_of_n_grams_and_of_a_model(tmp_path: Path) -> None:
    without = read_engine_options(EngineWords())
    assert (without.drafted, without.draft_model) == (0, None)
    ngram = read_engine_options(EngineWords(draft="ngram"))
    assert (ngram.drafted, ngram.draft_model) == (3, None)
    small = read_engine_options(EngineWords(draft=str(write_folder(tmp_path)), drafted="7"))
    assert small.drafted == 7
    assert small.draft_model
    assert small.draft_model.source == tmp_path


@pytest.mark.parametrize(
    ("draft", "drafted", "message"),
    [
        ("", "3", "--drafted needs --draft ngram"),
        ("ngram", "64", "--drafted 64 is more than the most, 63"),
        ("ngram", "0", "below 1"),
        ("no-such-model", "", "no-such-model"),
    ],
)
def test_drafts_that_are_refused(draft: str, drafted: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        read_engine_options(EngineWords(draft=draft, drafted=drafted))


def test_a_plan_without_weights_names_models_that_have_some(tmp_path: Path) -> None:
    path = str(tmp_path / "plan.json")
    job = sw.Serve(context=256, batch=1)
    save(sw.plan(sw.model("smollm2-135m"), sw.hardware("h100:1"), job), path)
    with pytest.raises(BadInput, match="--from smollm2-135m-instruct"):
        read_model(path, "")
