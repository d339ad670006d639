"""Text to tokens to sequences: nothing is lost, every sequence comes once an epoch, a step is a
function of its number."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from shardwise.errors import BadFile, BadInput
from shardwise.runtime.tokenizer import ByteTokenizer, read_tokenizer
from shardwise.train import sources
from shardwise.train.data_order import DataOrder, data_order, read_mixture
from shardwise.train.tokenize import TokenizeSummary, tokenize
from shardwise.train.tokens import open_tokens

SEQ, BATCH = 16, 4


def written(folder: Path, *texts: str, shard_tokens: int = 1 << 20) -> TokenizeSummary:
    inputs = folder.parent / f"{folder.name}-texts"
    inputs.mkdir()
    for i, text in enumerate(texts):
        (inputs / f"{i:03d}.txt").write_text(text)
    found = sources.find_sources([str(inputs)], "*", "text")
    return tokenize(found, ByteTokenizer(), str(folder), shard_tokens=shard_tokens)


def drawn(folder: Path, seed: int = 0) -> DataOrder:
    return data_order([open_tokens(str(folder))], [1.0], seq=SEQ, batch=BATCH, seed=seed)


def test_bytes_come_back_with_ends_between_documents(tmp_path: Path) -> None:
    texts = ["über\n", "", "def f(): ...\n" * 9]
    told = written(tmp_path / "d", *texts, shard_tokens=32)
    tokens = open_tokens(str(tmp_path / "d"))
    stream = np.concatenate(tokens.shards)
    assert [len(s) for s in tokens.shards[:-1]] == [32] * (len(tokens.shards) - 1)
    assert told.tokens == len(stream) == tokens.n_tokens
    cuts = np.flatnonzero(stream == ByteTokenizer().end)
    documents = np.split(stream, cuts + 1)[:-1]
    assert [tokens.tokenizer().decode(d.tolist()) for d in documents] == texts


def test_a_long_document_is_cut_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "CHUNK_CHARACTERS", 8)
    text = "no line ends here at all\nand\n\nthen ä few"
    written(tmp_path / "d", text)
    stream = open_tokens(str(tmp_path / "d")).shards[0]
    assert ByteTokenizer().decode(stream.tolist()) == text
    assert (stream == ByteTokenizer().end).sum() == 1


def test_a_tokenizer_file(tmp_path: Path) -> None:
    words = {"hello": 0, "world": 1, "</s>": 2, "[UNK]": 3}
    path = saved_tokenizer(tmp_path / "tok.json", words)
    (tmp_path / "a.jsonl").write_text('{"text": "hello world"}\n\n{"text": "world"}\n')
    tokenizer = read_tokenizer(path)
    found = sources.find_sources([str(tmp_path / "a.jsonl")], "*", "text")
    told = tokenize(found, tokenizer, str(tmp_path / "d"), file=path)
    tokens = open_tokens(str(tmp_path / "d"))
    assert tokens.shards[0].tolist() == [0, 1, 2, 1, 2]
    assert (told.documents, told.vocab, tokens.shards[0].dtype) == (2, 4, np.uint16)
    assert tokens.tokenizer().decode([0, 1]) == "hello world"
    with pytest.raises(BadInput, match='no token "<x>"'):
        read_tokenizer(path, "<x>")


def saved_tokenizer(path: Path, words: dict[str, int], narrowed: bool = False) -> Path:
    """A file of words; `narrowed` has texts cut to two tokens and filled up to eight."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    made = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    if narrowed:
        made.enable_truncation(2)
        made.enable_padding(length=8, pad_id=words["[UNK]"], pad_token="[UNK]")
    made.save(str(path))
    return path


def test_a_tokenizer_file_neither_cuts_nor_fills_up(tmp_path: Path) -> None:
    words = {"hello": 0, "world": 1, "</s>": 2, "[UNK]": 3}
    tokenizer = read_tokenizer(saved_tokenizer(tmp_path / "t.json", words, narrowed=True))
    assert tokenizer.encode("hello world world hello") == [0, 1, 1, 0]
    assert tokenizer.encode("world") == [1]


def test_a_vocabulary_with_gaps_reaches_to_its_highest_token(tmp_path: Path) -> None:
    words = {"hello": 0, "world": 70_000, "</s>": 2, "[UNK]": 3}
    path = saved_tokenizer(tmp_path / "t.json", words)
    (tmp_path / "a.txt").write_text("hello world")
    found = sources.find_sources([str(tmp_path / "a.txt")], "*", "text")
    told = tokenize(found, read_tokenizer(path), str(tmp_path / "d"), file=path)
    assert told.vocab == 70_001
    assert open_tokens(str(tmp_path / "d")).shards[0].tolist() == [0, 70_000, 2]


def test_every_sequence_once_an_epoch_and_each_epoch_in_another_order(tmp_path: Path) -> None:
    written(tmp_path / "d", "0123456789" * 64 + "x", shard_tokens=20 * SEQ + 1)
    found = drawn(tmp_path / "d")
    n = open_tokens(str(tmp_path / "d")).cumulative_sequences(SEQ)[-1]
    assert n == 40
    epochs = [
        [o for step in range(e * n // BATCH, (e + 1) * n // BATCH) for o in found.origins(step)]
        for e in range(2)
    ]
    for epoch in epochs:
        assert sorted(epoch) == [(0, i) for i in range(n)]
    assert epochs[0] != epochs[1]
    assert epochs[0] != sorted(epochs[0])


def test_rows_are_what_lies_there(tmp_path: Path) -> None:
    written(tmp_path / "d", "abcdefghijklmnopqrstuvwxyz" * 9)
    found, stream = drawn(tmp_path / "d"), open_tokens(str(tmp_path / "d")).shards[0]
    rows = found.rows(2, range(BATCH))
    for row, (_, i) in zip(rows, found.origins(2), strict=True):
        assert row.tolist() == stream[i * SEQ : (i + 1) * SEQ + 1].tolist()


def test_a_step_is_the_same_whatever_was_read_before(tmp_path: Path) -> None:
    written(tmp_path / "d", "abcdefghijklmnopqrstuvwxyz" * 99)
    through = drawn(tmp_path / "d")
    for step in range(7):
        last = through.rows(step, range(BATCH))
    again = drawn(tmp_path / "d")
    assert (again.rows(6, range(BATCH)) == last).all()
    assert (again.rows(6, [3]) == last[3:]).all(), "a host that reads one row"
    assert (drawn(tmp_path / "d", seed=1).rows(6, range(BATCH)) != last).any()


def test_mixtures_keep_their_shares(tmp_path: Path) -> None:
    for name in ("a", "b"):
        written(tmp_path / name, name * 800)
    sets, weights = read_mixture(f"{tmp_path}/a=3,{tmp_path}/b=1")
    found = data_order(sets, weights, seq=SEQ, batch=BATCH, seed=0)
    counts = Counter(which for step in range(100) for which, _ in found.origins(step))
    assert counts == {0: 300, 1: 100}


@pytest.mark.parametrize(
    "weights", [[0.0, 1.0], [float("nan"), 1.0], [float("inf"), 1.0], [-1.0, 2.0], [1e-320, 1.0]]
)
def test_weights_that_are_no_shares(tmp_path: Path, weights: list[float]) -> None:
    written(tmp_path / "d", "a" * 99)
    tokens = open_tokens(str(tmp_path / "d"))
    with pytest.raises(BadInput, match="of --data are not shares of a whole"):
        data_order([tokens] * 2, weights, seq=SEQ, batch=BATCH, seed=0)


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_seeds_that_there_are_not(tmp_path: Path, seed: int) -> None:
    written(tmp_path / "d", "a" * 99)
    with pytest.raises(BadInput, match=r"seed -?\d+ is not between 0 and 4294967295"):
        drawn(tmp_path / "d", seed)


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="shardwise data tokenize"):
        open_tokens(str(tmp_path))
    (tmp_path / "bad.txt").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "bad.jsonl").write_text('{"text": "a"}\n{"txt": 1}\n')
    (tmp_path / "half.jsonl").write_text('{"text": "a\\ud800"}\n')
    expected = {
        "bad.txt": "not UTF-8",
        "bad.jsonl": 'line 2 has no "text"',
        "half.jsonl": 'line 1: "text" has a lone surrogate',
    }
    for name, said in expected.items():
        with pytest.raises(BadFile, match=said):
            tokenize(
                sources.find_sources([str(tmp_path / name)], "*", "text"),
                ByteTokenizer(),
                str(tmp_path),
            )
    with pytest.raises(BadFile) as told:
        sources.find_sources([str(tmp_path / "x"), str(tmp_path / "y")], "*", "text")
    assert len(told.value.problems) == 2


def test_a_folder_skips_what_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.bin").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "in" / "b.txt").write_text("b")
    found = sources.find_sources([str(tmp_path / "in")], "*", "text")
    told = tokenize(found, ByteTokenizer(), str(tmp_path / "d"))
    assert told.documents == 1
    assert [Path(p).name for p in told.skipped] == ["a.bin"]


def test_a_shard_that_is_not_whole_is_refused(tmp_path: Path) -> None:
    written(tmp_path / "d", "a" * 99)
    shard = tmp_path / "d" / "00000.bin"
    shard.write_bytes(shard.read_bytes()[:-2])
    with pytest.raises(BadFile, match="incomplete"):
        open_tokens(str(tmp_path / "d"))
    about = tmp_path / "d" / "data.json"
    about.write_text(json.dumps({"schema": "x"}))
    with pytest.raises(BadFile, match="schema"):
        open_tokens(str(tmp_path / "d"))


def test_too_few_tokens_for_one_sequence(tmp_path: Path) -> None:
    written(tmp_path / "d", "abc")
    with pytest.raises(BadInput, match="not one sequence of 16"):
        drawn(tmp_path / "d")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("empty.txt", r"there is no text\. Empty: 1, such as .*empty\.txt\."),
        ("binaries", r"there is no text\. Not UTF-8 text: 2, such as .*a\.bin\."),
        ("packed", r"Not UTF-8 text: 1, such as .*a\.gz \(gzip: unpack it first\)\."),
        ("packed/a.gz", r"a\.gz is compressed \(gzip\), not text: unpack it first\."),
        ("packed.jsonl", r"packed\.jsonl is compressed \(gzip\), not text: unpack it first\."),
    ],
)
def test_why_no_text_came(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "empty.txt").touch()
    (tmp_path / "binaries").mkdir()
    for file in ("a.bin", "b.bin"):
        (tmp_path / "binaries" / file).write_bytes(b"\xff\xfe\x00")
    (tmp_path / "packed").mkdir()
    content = gzip.compress(b'{"text": "some"}\n')
    (tmp_path / "packed" / "a.gz").write_bytes(content)
    (tmp_path / "packed.jsonl").write_bytes(content)
    found = sources.find_sources([str(tmp_path / name)], "*", "text")
    with pytest.raises(BadFile, match=said):
        tokenize(found, ByteTokenizer(), str(tmp_path / "out"))
    assert not list((tmp_path / "out").iterdir())


def test_a_folder_that_cannot_be_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied", "/a/secret")

    monkeypatch.setattr(Path, "rglob", refuse)
    with pytest.raises(BadFile, match="cannot be searched: /a/secret: Permission denied"):
        sources.find_sources([str(tmp_path)], "*.txt", "text")
