"""--precision: each word holds what its source holds, and is said on the screen."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator

import pytest

import shardwise as sw
from shardwise.cli import main
from shardwise.errors import BadInput
from shardwise.workload import PRECISIONS, state_dtypes

# Bytes per parameter with AdamW: weights, gradients, master copy, two moments.
HELD = {
    "fp32-master": (2, 4, 4, 8),  # Megatron-LM, dist_optimizer.md: bf16 param, fp32 grads: 18
    "fp32": (4, 4, 0, 8),  # the same: fp32 param, fp32 grads: 16; torchtitan FSDP2; MaxText
    "bf16": (2, 2, 0, 4),  # torchtitan, training.dtype = "bfloat16"
}


def printed(*args: str) -> tuple[int, str]:
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        code = main(list(args))
    return code, text.getvalue()


def plan(*more: str) -> tuple[int, str]:
    return printed("plan", "llama3.2-1b", "v5e:4x4", "--train", "--batch", "32x2048", *more)


def test_every_word_has_a_row() -> None:
    assert set(HELD) == set(PRECISIONS)


@pytest.mark.parametrize("word", PRECISIONS)
def test_a_word_holds_the_bytes_of_its_source(word: str) -> None:
    job = sw.Train(batch=1, seq=1, **state_dtypes(word, "bf16"))  # type: ignore[arg-type]
    weights, gradients, master, moments = HELD[word]
    assert job.weight_bytes == weights
    assert job.optimizer_bytes == master + moments
    assert job.state_bytes == weights + gradients + master + moments
    assert job.compute == "bf16"
    assert job.precision == word


@pytest.mark.parametrize("compute", ["bf16", "fp16", "fp8"])
def test_the_default_is_an_fp32_master(compute: str) -> None:
    job = sw.Train(batch=1, seq=1, compute=compute, **state_dtypes("", compute))  # type: ignore[arg-type]
    assert job.precision == "fp32-master"
    assert job.weights == {"bf16": "bf16", "fp16": "fp16", "fp8": "bf16"}[compute]
    assert sw.Train(batch=1, seq=1).precision == "fp32-master"


def test_matmuls_in_fp32_need_fp32_weights() -> None:
    assert state_dtypes("", "fp32") == PRECISIONS["fp32"]
    with pytest.raises(BadInput, match="precision bf16 holds weights in 16 bits"):
        state_dtypes("bf16", "fp32")


def test_no_word_means_other_combinations() -> None:
    job = sw.Train(batch=1, seq=1, gradients="bf16", master=None)
    assert job.precision is None
    assert job.loses_updates


@pytest.mark.parametrize("word", PRECISIONS)
def test_the_screen_says_the_word_and_its_bytes(word: str) -> None:
    code, text = plan("--precision", word)
    assert code == 0
    assert f"state  {word}, {sum(HELD[word])} B a parameter: " in text
    assert ("updates of 16-bit" in " ".join(text.split())) == (word == "bf16")


def test_an_unknown_word_is_refused_with_the_words() -> None:
    code, text = plan("--precision", "half")
    assert code == 2
    for word in PRECISIONS:
        assert word in text


def rows_of_sweep(text: str) -> Iterator[str]:
    return (line for line in text.splitlines() if line.startswith(tuple(PRECISIONS)))


def test_a_sweep_over_precisions() -> None:
    code, text = printed(
        "sweep", "llama3.2-1b", "v5e:4x4", "--train", "--batch", "32x2048", "--precision", "all"
    )
    assert code == 0
    assert len(list(rows_of_sweep(text))) == len(PRECISIONS)


def test_fit_takes_the_word_for_training_alone() -> None:
    code, text = printed("fit", "llama3.2-1b", "v5e", "--train", "--precision", "fp32")
    assert code == 0
    assert "× 16 B" in text
    code, text = printed("fit", "llama3.2-1b", "v5e", "--precision", "fp32")
    assert code == 2
    assert "--train" in text
