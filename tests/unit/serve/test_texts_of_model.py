"""The grammars of a served model: built when the first request needs them, once."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from shardwise.errors import BadInput
from shardwise.serve import grammar
from shardwise.serve.model_files import find_model
from shardwise.serve.text.structure import JSON_OBJECT, JSON_SCHEMA, REGEX, GrammarSpec
from shardwise.serve.texts_of_model import ModelGrammar
from tests.unit.serve.model_files.tiny import write_folder

SPECS = [
    GrammarSpec(kind=REGEX, definition="[ab]+"),
    GrammarSpec(kind=JSON_SCHEMA, definition='{"type": "integer"}'),
    GrammarSpec(kind=JSON_OBJECT),
]


def test_the_first_masks_build_the_tables_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = []
    build = grammar.grammars

    def slow_build(*args: Any) -> grammar.Grammars:
        built.append(args)
        time.sleep(0.05)  # for other threads to come
        return build(*args)

    monkeypatch.setattr(grammar, "grammars", slow_build)
    model = find_model(str(write_folder(tmp_path, eos_token_id=2)))
    masks = ModelGrammar(model, model.stop_tokens)
    assert not built
    with ThreadPoolExecutor(6) as pool:
        made = list(pool.map(masks, SPECS * 2))
    assert len(built) == 1
    assert [mask.allowed() for mask in made[:3]] == [mask.allowed() for mask in made[3:]]
    assert len({mask.allowed() for mask in made}) == 3


def test_a_model_without_a_stop_token_has_no_masks(tmp_path: Path) -> None:
    model = find_model(str(write_folder(tmp_path)))
    with pytest.raises(BadInput, match="add eos_token_id"):
        ModelGrammar(model, frozenset())(SPECS[0])
