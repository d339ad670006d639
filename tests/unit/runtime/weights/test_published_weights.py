"""What is written of a model is read again, each chip its part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.runtime.scripts import answer

NAMES = ("gemma3", "gpt2", "gpt_neox", "phi3", "mixtral")


@pytest.fixture(scope="module")
def runs(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("models")
    return answer(root, "checkpoints", str(folder))


def test_every_model_ran(runs: Any) -> None:
    assert set(runs) == {*NAMES, "refused"}


@pytest.mark.parametrize("name", NAMES)
def test_what_comes_back_is_what_went_out(runs: Any, name: str) -> None:
    assert runs[name]["same"]
    assert runs[name]["as the table says"]
    assert runs[name]["numbers"] == runs[name]["weights"]
    assert runs[name]["files"] > 1


def test_a_vocabulary_is_filled_up(runs: Any) -> None:
    """91 words over 2 chips: one row of 32 more, tied to the unembedding."""
    assert runs["gpt2"]["filled"] == 32
    assert runs["phi3"]["filled"] == 0


def test_files_of_another_model_are_refused(runs: Any) -> None:
    (shape,), (missing,) = runs["refused"]
    assert shape.endswith("transformer.wpe.weight is (64, 32), the config says (65, 32).")
    assert "lacks 35 of 35 tensors: model.embed_tokens.weight, " in missing
