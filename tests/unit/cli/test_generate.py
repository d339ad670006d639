"""`shardwise generate`, with an engine that repeats what it was asked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest

from shardwise.cli import serving_model
from shardwise.cli.verbs import generate as verb
from shardwise.serve import generate, texts_of_model
from tests.golden.terminal import run


class Model(NamedTuple):
    name: str


class Engine(NamedTuple):
    max_context: int


class Words:
    """Texts whose tokens are words."""

    model = "gpt2"
    template = None
    stop_tokens: frozenset[int] = frozenset()

    def prompt(self, text: str) -> list[str]:
        return text.split()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    """The arguments of each call of the engine, which generates two pieces."""
    made: list[dict[str, object]] = []

    def fake(engine: object, texts: Words, prompt: list[str], **options: object) -> Iterator[str]:
        made.append({"prompt": prompt, **options})
        yield "Once\n"
        yield "upon\x1b[31m"

    @contextmanager
    def no_engine(*words: object, quiet: bool) -> Iterator[Engine]:
        yield Engine(max_context=1000)

    monkeypatch.setattr(verb, "read_model", lambda name, start: (Model(name), None))
    monkeypatch.setattr(serving_model, "running_engine", no_engine)
    monkeypatch.setattr(texts_of_model, "texts_of_model", lambda model: Words())
    monkeypatch.setattr(generate, "stream", fake)
    return made


def test_text_is_written_without_commands_to_the_terminal(calls: list[dict[str, object]]) -> None:
    said = run("generate", "gpt2", "Tell me")
    assert (said.code, said.out, said.err) == (0, "Once\nupon?[31m\n", "")
    (call,) = calls
    assert (call["prompt"], call["max_tokens"], call["stops"]) == (["Tell", "me"], 128, ())


def test_an_output_for_which_the_context_has_no_room(calls: list[dict[str, object]]) -> None:
    said = run("generate", "gpt2", "Tell me", "--max-tokens", "5000")
    assert (said.code, len(calls)) == (0, 1)
    assert "has room for 998 after the prompt, fewer than --max-tokens 5,000" in said.err


def test_options(calls: list[dict[str, object]]) -> None:
    sampling = ("--temperature", "0.5", "--top-k", "40", "--top-p", "0.9", "--seed", "3")
    said = run(
        "generate",
        "gpt2",
        "Hi",
        "--max-tokens",
        "7",
        "--stop",
        "END",
        *sampling,
        "--json",
    )
    assert json.loads(said.out) == {"model": "gpt2", "prompt": "Hi", "text": "Once\nupon\x1b[31m"}
    (call,) = calls
    assert (call["max_tokens"], call["stops"]) == (7, ("END",))
    chosen = call["sampling"]
    assert (chosen.temperature, chosen.top_k, chosen.top_p, chosen.seed) == (0.5, 40, 0.9, 3)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("option", "value"),
    [("--temperature", "-1"), ("--temperature", "nan"), ("--top-p", "0"), ("--top-k", "-3"),
     ("--seed", "-1"), ("--max-tokens", "0")],
)  # fmt: skip
def test_what_is_out_of_range(calls: list[dict[str, object]], option: str, value: str) -> None:
    said = run("generate", "gpt2", "Hi", option, value)
    assert said.code == 2
    assert option in said.err
    assert not calls


def test_a_model_without_a_chat_template(calls: list[dict[str, object]]) -> None:
    said = run("generate", "gpt2", "Hi", "--chat")
    assert said.code == 2
    assert "gpt2 has no chat template" in said.err
    assert not calls
