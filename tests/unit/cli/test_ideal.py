"""`shardwise ideal`: its numbers and its refusals."""

from __future__ import annotations

import json

import pytest

from tests.golden.terminal import run


def test_the_document_has_the_numbers_of_the_screen() -> None:
    words = ["ideal", "llama3-70b", "v5e", "--dtype", "int8", "--context", "8192", "--tpot", "15ms"]
    document = json.loads(run(*words, "--json").out)
    assert document["smallest"] == document["hardware"] == "v5e:2x4"
    assert document["envelope"]["max_batch"] == 42
    assert document["envelope"]["within"]["batch"] == 20
    assert "at most 42 sequences of 8,192 tokens" in " ".join(run(*words).out.split())


def test_parameters_are_a_model_with_kv_bytes() -> None:
    said = run("ideal", "70B", "v5e:4x4", "--kv-bytes", "160kB", "--dtype", "int8")
    assert "at most 141 sequences" in said.out
    assert "of 8,192 tokens" in " ".join(said.out.split())


def test_training_needs_no_room_for_a_cache() -> None:
    said = run("ideal", "405B", "v5e:4x4", "--kv-bytes", "500kB", "--tokens", "15T")
    assert said.code == 0
    assert "do not fit for serving" in said.out
    assert "at 40% MFU" in " ".join(said.out.split())


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("70B v5e", 2, "add --kv-bytes SIZE"),
        ("70B v5e --kv-bytes 160", 2, "has no unit"),
        ("70B v5e --kv-bytes 0B", 2, "--kv-bytes is 0"),
        ("gpt2 v5e --kv-bytes 1kB", 2, "is for a number of parameters"),
        ("nope v5e", 2, 'unknown model "nope"'),
        ("gpt2 v99", 2, 'unknown chip "v99"'),
        ("gpt2 v5e --dtype bf17", 2, 'unknown dtype "bf17"'),
        ("gpt2 v5e --tpot 15", 2, "has no unit"),
        ("llama3-405b v5e:4x4", 3, "The smallest machine that does: v5e:8x8."),
        ("gpt2 cpu", 2, "cpu"),
    ],
)
def test_refusals(words: str, code: int, message: str) -> None:
    said = run("ideal", *words.split())
    assert said.code == code
    assert message in " ".join(said.err.split())
