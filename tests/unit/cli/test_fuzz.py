"""No command line ends in a bug, in silence or in a long wait: hundreds that nobody should type."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shardwise.cli import locate
from tests.golden.terminal import Said, run
from tests.unit.cli.command_lines import GOOD, NONSENSE, command_lines, forms, options

CODES = {0, 2, 3, 4, 5}
LIMIT_S = 10  # of CPU time, which other work on the machine does not lengthen
SHORT = 150
LONG = 2000


class OutOfTime(BaseException):
    """The limit is reached; no `except Exception` catches it."""


@contextmanager
def limited() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise OutOfTime

    earlier = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, earlier)


def fault(words: list[str]) -> str:
    """What is wrong with the way in which a command line is answered; empty if nothing is."""
    try:
        with limited():
            said = run(*words)
    except OutOfTime:
        return f"over {LIMIT_S} s of CPU time"
    except Exception as error:
        return f"raises {type(error).__name__}: {error}"
    if said.code not in CODES:
        return f"exit code {said.code}: {said.err}"
    if "bug in shardwise" in said.err or "Traceback" in said.err:
        return said.err
    if said.code == 0 and has_nonsense(words):
        return f"answers nonsense: {said.out[:200]}"
    if said.code == 0:
        return "" if said.out.strip() else "says nothing"
    return "" if names_a_mistake(words, said) else f"names no mistake: {said.err}{said.out}"


def has_nonsense(words: list[str]) -> bool:
    """Whether an option is given twice, or has a value that is nothing but the name of a file."""
    has_value = options(form(words))
    if any(words.count(name) > 1 for name in words if has_value.get(name)):
        return True
    for before, word in zip(["", *words], words, strict=False):
        value = word.partition("=")[2] if word.startswith("-") and "=" in word else word
        if value in NONSENSE and before not in ("-o", "--output") and not word.startswith("-o="):
            return True
    return False


def form(words: list[str]) -> str:
    """The verb, as its help names it."""
    name, _ = locate(words[0], words[1:])
    return name


def names_a_mistake(words: list[str], said: Said) -> bool:
    """Whether the message has a word of the command line, or the name of an option.

    A table of a sweep may have it too. Words are compared without spaces, at which lines break.
    """
    told = said.err
    if said.code != 2:
        told += said.out
    message = "".join(told.casefold().split())
    typed = " ".join(words).casefold()
    printable = "".join(letter if letter.isprintable() else "?" for letter in typed)
    names = [name.lstrip("-") for name in options(form(words)) if len(name) > 2]
    values = [word.partition("=")[2] for word in printable.split() if "=" in word]
    parts = (*printable.split(), *filter(None, values), *re.findall(r"\w+", typed), '""', *names)
    if not all(typed_word.strip() for typed_word in words) and "isempty" in message:
        return True
    return bool(message) and any(part[:40] in message for part in parts)


def faults(seed: int, count: int) -> list[str]:
    """The faults of `count` command lines, each in an empty folder of its own below this one."""
    found = []
    for number, words in enumerate(command_lines(seed, count)):
        folder = Path(str(number))
        folder.mkdir()
        with contextlib.chdir(folder):
            problem = fault(words)
        if problem:
            found.append(f"shardwise {shlex.join(words)}\n    {problem.strip()}")
    return found


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO())


def test_every_verb_is_tried() -> None:
    assert set(GOOD) == forms()


def test_the_same_seed_makes_the_same_lines() -> None:
    assert list(command_lines(3, 40)) == list(command_lines(3, 40))
    assert list(command_lines(3, 40)) != list(command_lines(4, 40))


def test_a_fault_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    assert has_nonsense(["models", "gpt2", "--kv", "--seq", "🦙"])
    assert has_nonsense(["models", "gpt2", "--seq", "8", "--seq", "8"])
    assert not has_nonsense(["plan", "gpt2", "--json", "-o", "🦙"])
    monkeypatch.setattr("shardwise.cli.locate", broken)
    assert "exit code 1" in fault(["models"])
    assert not names_a_mistake(["hw", "v5"], Said(code=2, out="", err="✗ no.\n"))
    assert names_a_mistake(["hw", "v5"], Said(code=2, out="", err='✗ unknown chip "v5".'))


def test_short() -> None:
    assert faults(1, SHORT) == []


@pytest.mark.oracle
def test_long() -> None:
    assert faults(2, LONG) == []
