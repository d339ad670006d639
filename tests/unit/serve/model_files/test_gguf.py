"""A GGUF file has the model of the Hugging Face folder that it was made from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader
from gguf.quants import dequantize, quantize

from shardwise.errors import BadFile
from shardwise.models import from_dict, load
from shardwise.serve.model_files import find_model
from shardwise.serve.model_files.gguf.architectures import (
    ARCHITECTURES,
    LLAMA3_SCALING,
    _llama3_factors,
    _query_scalar,
    config_keys,
)
from shardwise.serve.model_files.gguf.file import GgufFile
from shardwise.serve.model_files.gguf.weights import GgufWeights
from shardwise.strategy.mesh import Mesh
from tests.unit.runtime import paged_cases
from tests.unit.serve.model_files import tiny


def weights_of(path: Path) -> GgufWeights:
    weights = find_model(str(path)).weights
    assert isinstance(weights, GgufWeights)
    return weights


@pytest.mark.parametrize("architecture", sorted(tiny.CONFIGS))
def test_config_and_tensors_are_those_of_the_folder(tmp_path: Path, architecture: str) -> None:
    path = tiny.write_gguf(tmp_path / "tiny.gguf", architecture)
    model = find_model(str(path))
    expected = tiny.config_of(architecture)
    assert replace(model.config, name="", source="") == replace(expected, name="", source="")
    tensors = weights_of(path).tensors()
    originals = tiny.random_tensors(expected)
    assert set(tensors) == set(originals)
    for name, tensor in originals.items():
        # Gemma's scales were stored with 1 added, which rounds them: half of the step at 1 to 2.
        np.testing.assert_allclose(tensors[name], tensor, rtol=0, atol=2**-23, err_msg=name)


def test_every_architecture_is_tested() -> None:
    assert set(tiny.CONFIGS) == set(ARCHITECTURES)


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_1"])
def test_matrices_are_dequantized(tmp_path: Path, kind: str) -> None:
    quantized = GGMLQuantizationType[kind]
    path = tiny.write_gguf(tmp_path / "tiny.gguf", "llama", quantized)
    name = "model.layers.1.mlp.down_proj.weight"
    original = tiny.random_tensors(tiny.config_of("llama"))[name]
    expected = dequantize(quantize(original, quantized), quantized)
    np.testing.assert_array_equal(weights_of(path).tensors()[name], expected)


def test_the_whole_model_is_loaded_like_the_folder(tmp_path: Path) -> None:
    from_file = find_model(str(tiny.write_gguf(tmp_path / "tiny.gguf")))
    from_folder = find_model(str(tiny.write_folder(tmp_path / "tiny")))
    table = paged_cases.engine((from_file.config, Mesh(), "copied", paged_cases.FP32)).table
    trees = [model.weights.load(table, jnp.float32) for model in (from_file, from_folder)]
    jax.tree.map(np.testing.assert_array_equal, *trees)


def test_what_serving_needs_is_in_the_file(tmp_path: Path) -> None:
    model = find_model(str(tiny.write_gguf(tmp_path / "tiny.gguf")))
    assert model.name == "tiny"
    assert model.max_context == 128
    assert model.stop_tokens == {0, 2}  # <|endoftext|> too, whose key files do not have
    assert model.bos_token == 1
    assert not model.adds_bos
    assert model.chat_template == tiny.TEMPLATE
    assert model.special_tokens == {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}


def test_the_begin_token_is_added_if_the_file_says_so(tmp_path: Path) -> None:
    values = {"tokenizer.ggml.add_bos_token": True}
    assert find_model(str(tiny.write_gguf(tmp_path / "tiny.gguf", **values))).adds_bos


def test_factors_of_llama3_are_recognized(tmp_path: Path) -> None:
    path = tiny.write_gguf(tmp_path / "tiny.gguf")
    weights = weights_of(path)
    scaling = {**LLAMA3_SCALING, "factor": 32.0}
    factors = _llama3_factors(scaling, 5e5, 8).astype(np.float32)
    stand_in = GGUFReader(str(path)).tensors[0]._replace(data=factors, shape=np.array([8]))
    tensors = {**weights.file.tensors, "rope_freqs.weight": stand_in}
    keys = config_keys(replace(weights.file, tensors=tensors))
    assert keys["rope_scaling"] == scaling
    frequencies = from_dict(keys, name="tiny").groups[0].layer.attention
    assert frequencies is not None
    assert frequencies.rotary.scaling is not None
    tensors["rope_freqs.weight"] = stand_in._replace(data=factors * 2)
    with pytest.raises(BadFile, match="not those of Llama 3"):
        config_keys(replace(weights.file, tensors=tensors))


@pytest.mark.parametrize("name", ["gemma2-9b", "gemma2-27b", "gemma3-4b", "gemma3-27b"])
def test_the_scale_of_queries_is_known_without_a_key(name: str) -> None:
    model = load(name)
    attention = model.groups[0].layer.attention
    assert attention is not None
    values = {
        "general.architecture": "gemma",
        "gemma.block_count": model.n_layers,
        "gemma.embedding_length": model.d_model,
        "gemma.attention.head_count": attention.n_heads,
        "gemma.attention.key_length": attention.d_head,
    }
    file = GgufFile(path=Path("x.gguf"), values=values, tensors={})
    n_layers_27b = 46 if "gemma2" in name else 62
    assert _query_scalar(file, n_layers_27b) ** -0.5 == pytest.approx(attention.score_scale)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"llama.expert_count": 8}, "a mixture of 8 experts"),
        ({"general.architecture": "bloom"}, 'architecture "bloom" is not served from GGUF'),
        ({"llama.block_count": 3}, "lacks the tensor blk.2.attn_q.weight"),
        ({"llama.feed_forward_length": 64}, "its keys say"),
        ({"llama.context_length": None}, "has no key llama.context_length"),
        ({"tokenizer.ggml.model": "bert"}, 'tokenizer model "bert" is not known'),
        ({"tokenizer.ggml.pre": "chameleon"}, 'pre-tokenizer "chameleon" is not known'),
        ({"split.count": 3}, "one of 3 parts"),
        ({"llama.rope.scaling.type": "odd"}, 'rope scaling "odd"'),
    ],
)
def test_refused(tmp_path: Path, values: dict[str, Any], message: str) -> None:
    path = tiny.write_gguf(tmp_path / "tiny.gguf", **values)
    with pytest.raises(BadFile, match=message):
        find_model(str(path))


def test_a_file_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    path = tiny.write_gguf(tmp_path / "tiny.gguf")
    for size in (0, 3, 100, 5000, path.stat().st_size - 1000):
        cut = tmp_path / f"{size}.gguf"
        cut.write_bytes(path.read_bytes()[:size])
        with pytest.raises(BadFile, match="not a whole GGUF file"):
            find_model(str(cut))
