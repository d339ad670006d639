"""An engine that is launched from the files of two models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType

from shardwise.errors import BadInput
from shardwise.runtime.tokenizer import ByteTokenizer
from shardwise.serve.engine_options import EngineOptions
from shardwise.serve.launch import launched
from shardwise.serve.model_files import find_model
from shardwise.serve.request import Generation, Sampling
from tests.unit.runtime.scripts import answer
from tests.unit.serve.engines import generate
from tests.unit.serve.model_files.tiny import write_folder, write_gguf

LAYOUTS = {
    "2D": ["2d", "copied", 4, 2],
    "2D, shared tokens": ["2d", "sequence", 2, 4],
    "tensor 4, shared tokens": ["stationary", "sequence", 1, 4],
}
OPTIONS = EngineOptions(context=48, sequences=1, pass_tokens=16, drafted=2)


@pytest.mark.oracle
def test_a_model_that_drafts_for_itself(tmp_path: Path) -> None:
    model = find_model(str(write_folder(tmp_path)))
    request = Generation(
        id="whole", prompt=tuple(range(20)), max_tokens=28, sampling=Sampling(temperature=0)
    )
    stages = set()
    with launched(
        model,
        replace(OPTIONS, draft_model=model),
        progress=lambda stage, done, total: stages.add(stage),
    ) as engine:
        (output,) = generate(engine, [request])
        stats = engine.stats()
    assert len(output.ids) == 28
    assert stats.accepted_tokens == stats.drafted_tokens == 18
    assert stages == {"weights", "programs", "drafts"}


def test_weights_of_four_bits(tmp_path: Path) -> None:
    model = find_model(str(write_gguf(tmp_path / "tiny.gguf", "llama", GGMLQuantizationType.Q4_1)))
    request = Generation(
        id="int4", prompt=tuple(range(20)), max_tokens=8, sampling=Sampling(temperature=0)
    )
    outputs = []
    for weights in ("int4", "fp32"):  # the same numbers
        options = replace(OPTIONS, drafted=0, weights=weights, kv="fp32")
        with launched(model, options) as engine:
            assert engine.weights_dtype == weights
            (output,) = generate(engine, [request])
        outputs.append(output.ids)
    assert outputs[0] == outputs[1]


@pytest.mark.oracle
def test_the_first_drawn_token_compiles_nothing(tmp_path: Path) -> None:
    model = find_model(str(write_folder(tmp_path)))
    request = Generation(
        id="drawn", prompt=tuple(range(20)), max_tokens=4, sampling=Sampling(temperature=1, seed=3)
    )
    with launched(model, replace(OPTIONS, drafted=0)) as engine:
        draw = engine._programs._draw
        n_compiled = draw._cache_size()
        (output,) = generate(engine, [request])
        assert draw._cache_size() == n_compiled
    assert len(output.ids) == 4


def test_a_model_with_other_tokens_cannot_draft(tmp_path: Path) -> None:
    model = find_model(str(write_folder(tmp_path)))
    other = replace(model, name="bytes", tokenizer=ByteTokenizer())
    options = replace(OPTIONS, draft_model=other)
    with (
        pytest.raises(BadInput, match=r"bytes cannot draft for .*: their tokenizers differ"),
        launched(model, options),
    ):
        pass


@pytest.mark.oracle
def test_a_saved_plan_is_served_in_its_layout(root: Path) -> None:
    runs = answer(root, "tests.unit.serve.planned_engines")
    for name, layout in LAYOUTS.items():
        assert runs[name]["layout"] == layout
        assert runs[name]["output"] == runs[name]["plain"]


def test_host_memory_for_less_than_a_block_is_refused(tmp_path: Path) -> None:
    model = find_model(str(write_folder(tmp_path)))
    block = "16 tokens, 8\\.19 kB"  # keys and values of 2 layers of 2 heads of 32, in fp32
    with (
        pytest.raises(BadInput, match=rf"--host-cache 10.0 B is not between a block of {block}"),
        launched(model, replace(OPTIONS, host_bytes=10, drafted=0)),
    ):
        pass
