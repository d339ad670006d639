"""A model trained from random weights is exported with the tokenizer of its data."""

from __future__ import annotations

import json
from pathlib import Path

from shardwise.runtime.tokenizer import (
    ByteTokenizer,
    byte_level_file,
    open_tokenizer,
    read_tokenizer,
)
from shardwise.serve.text.vocabulary import ByteVocabulary, FileVocabulary
from shardwise.train import sources
from shardwise.train.export_tokenizer import export_tokenizer
from shardwise.train.random_tokens import write_random_tokens
from shardwise.train.tokenize import tokenize
from shardwise.train.tokens import open_tokens
from tests.unit.train.command import tokens

TEXT = "né\tX \r\n\x00 日本 🙂<"


def test_the_file_of_bytes_has_the_tokens_of_bytes(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(byte_level_file(), "utf-8")
    inner = open_tokenizer(tmp_path / "tokenizer.json", extra="train")
    file, plain = FileVocabulary(inner), ByteVocabulary()
    assert file.encode(TEXT) == plain.encode(TEXT) == ByteTokenizer().encode(TEXT)
    assert file.decode(file.encode(TEXT)) == TEXT
    assert [file.bytes_of(i) for i in range(256)] == [bytes([i]) for i in range(256)]
    assert inner.token_to_id("<|endoftext|>") == ByteTokenizer().end
    assert file.decode([104, 105, 256]) == "hi"


def test_an_export_has_the_tokenizer_of_its_data(tmp_path: Path) -> None:
    tokens(tmp_path)
    out = tmp_path / "out"
    out.mkdir()
    written = ["tokenizer.json", "generation_config.json"]
    assert export_tokenizer(open_tokens(str(tmp_path / "data")), out) == written
    assert json.loads((out / written[1]).read_text()) == {"eos_token_id": 256}
    file = out / "tokenizer.json"
    assert file.read_text("utf-8") == byte_level_file()
    inner = open_tokenizer(file, extra="train")
    text = sources.find_sources([str(tmp_path / "text.txt")], "*", "text")
    tokenize(text, read_tokenizer(file), str(tmp_path / "again"), file=file)
    (out / written[1]).write_text("{}")  # settings of the model stay
    assert export_tokenizer(open_tokens(str(tmp_path / "again")), out) == written[:1]
    assert open_tokenizer(file, extra="train").get_vocab() == inner.get_vocab()
    assert (out / written[1]).read_text() == "{}"


def test_random_tokens_have_no_tokenizer(tmp_path: Path) -> None:
    write_random_tokens(str(tmp_path), 10, 300)
    assert export_tokenizer(open_tokens(str(tmp_path)), tmp_path / "out") == []
