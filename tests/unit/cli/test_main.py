"""The frame of the command line: help, version, streams, colours, exit codes, start-up."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import shardwise
from shardwise import cli
from shardwise.cli import VERBS, help_text, models
from tests.arch import fresh
from tests.golden.terminal import run

LOADED = """
import sys
from shardwise.cli import main
code = main(sys.argv[1:])
print("loaded", *sys.modules)
sys.exit(code)
"""


@pytest.mark.parametrize("args", [(), ("--help",), ("-h",), ("help",)])
def test_help(args: tuple[str, ...]) -> None:
    done = run(*args)
    assert (done.code, done.out, done.err) == (0, help_text(), "")
    assert all(f"  {verb} " in done.out for verb in VERBS)
    assert max(map(len, done.out.splitlines())) <= 80


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_verbs(verb: str) -> None:
    done = run(verb, "--help")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"Usage: shardwise {verb} ")
    assert "--json" in done.out
    assert max(map(len, done.out.splitlines())) <= 80


def test_version() -> None:
    assert run("--version").out == f"shardwise {shardwise.__version__}\n"


def test_a_bug_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object, **kwargs: object) -> None:
        raise ZeroDivisionError("division by zero")

    monkeypatch.delenv("SHARDWISE_DEBUG", raising=False)
    monkeypatch.setattr(models, "run", broken)
    monkeypatch.setattr(cli, "_run", lambda args: broken())
    done = run("models", "llama3-70b")
    assert done.code == 1
    assert done.err.startswith("✗ a bug in shardwise ")
    said = done.err.replace("\n  ", " ")
    assert "ZeroDivisionError: division by zero" in said
    assert "shardwise models llama3-70b" in said
    assert "Traceback" not in said
    monkeypatch.setenv("SHARDWISE_DEBUG", "1")
    assert "Traceback" in run("models", "llama3-70b").err


def test_interrupt_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(args: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_run", interrupted)
    done = run("demo")
    assert (done.code, done.out, done.err) == (130, "", "")


def test_a_reader_that_leaves() -> None:
    code = "import sys; from shardwise.cli import main; sys.exit(main(['models', '--json']))"
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.close()
    assert child.stderr.read() == b""
    child.stderr.close()
    assert child.wait() == 0


def test_colour_is_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    command = ("fit", "llama3-8b", "v5e")
    plain = run(*command).out
    assert "\x1b" not in plain
    assert run(*command, tty=True).out == plain  # NO_COLOR is set in the tests
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b[" in run(*command, tty=True).out
    assert run(*command).out == plain


def test_a_stream_without_unicode() -> None:
    done = run("fit", "llama3-70b", "h100", "--train", encoding="ascii")
    assert done.code == 0
    assert "70.6B x 2 B" in done.out
    assert run("models", "llama3-70b", "--json", encoding="ascii").code == 0


@pytest.mark.parametrize(("columns", "widest"), [("40", 40), ("80", 80), ("300", 100)])
def test_width(monkeypatch: pytest.MonkeyPatch, columns: str, widest: int) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    lines = run("hw", "v5e").out.splitlines()
    assert max(map(len, lines)) <= widest


@pytest.mark.parametrize(
    ("command", "without"),
    [
        ("--help", {"typer", "rich", "numpy", "msgspec"}),
        ("--version", {"typer", "rich", "numpy", "msgspec"}),
        ("fit llama3-70b v5e --serve", {"numpy", "msgspec", "shardwise.plan", "shardwise.book"}),
        ("models llama3-70b", {"numpy", "shardwise.plan"}),
        ("hw v5p", {"numpy", "shardwise.plan", "shardwise.models"}),
    ],
)
def test_loads_only_what_it_needs(command: str, without: set[str]) -> None:
    code, text = fresh.run("-c", LOADED, *command.split())
    assert code == 0, text
    loaded = set(text.splitlines()[-1].split())
    assert "loaded" in loaded
    assert not without & loaded


def test_the_check_can_fail() -> None:
    code, text = fresh.run("-c", LOADED, "plan", "llama3-8b", "v5e:4x4", "--train")
    assert code == 2, text
    assert "typer" in set(text.splitlines()[-1].split())


def test_environment_is_that_of_a_plain_terminal() -> None:
    assert os.environ["COLUMNS"] == "80"
    assert os.environ["NO_COLOR"] == "1"
