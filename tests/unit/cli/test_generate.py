"""`shardwise generate`, with an engine that repeats what it was asked."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from shardwise import cli
from shardwise.serve import generate
from tests.golden.terminal import run


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, object]]:
    """The arguments of each call of the engine, which generates two pieces."""
    made: list[dict[str, object]] = []

    def fake(model: str, prompt: str, **options: object) -> Iterator[str]:
        made.append({"model": model, "prompt": prompt, **options})
        yield "Once\n"
        yield "upon\x1b[31m"

    monkeypatch.setattr(generate, "generate", fake)
    monkeypatch.setitem(cli.VERBS, "generate", "text")
    return made


def test_text_is_written_without_commands_to_the_terminal(calls: list[dict[str, object]]) -> None:
    said = run("generate", "gpt2", "Tell me")
    assert (said.code, said.out, said.err) == (0, "Once\nupon?[31m\n", "")
    (call,) = calls
    assert (call["model"], call["prompt"], call["max_tokens"], call["stop"], call["chat"]) == (
        "gpt2", "Tell me", 128, (), False,
    )  # fmt: skip


def test_options(calls: list[dict[str, object]]) -> None:
    sampling = ("--temperature", "0.5", "--top-k", "40", "--top-p", "0.9", "--seed", "3")
    said = run(
        "generate",
        "gpt2",
        "Hi",
        "--chat",
        "--max-tokens",
        "7",
        "--stop",
        "END",
        *sampling,
        "--json",
    )
    assert json.loads(said.out) == {"model": "gpt2", "prompt": "Hi", "text": "Once\nupon\x1b[31m"}
    (call,) = calls
    assert (call["max_tokens"], call["stop"], call["chat"]) == (7, ("END",), True)
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
