"""The frame of the command line: help, version, streams, colours, exit codes, start-up."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

import shardwise
from shardwise import cli
from shardwise.cli import VERBS, help_text, progress
from shardwise.cli.verbs import models
from shardwise.hardware import MARKETS, chip_names
from shardwise.models import presets
from tests.arch import fresh
from tests.golden.terminal import Stream, run

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
    assert done.err.endswith("\n  SHARDWISE_DEBUG=1 in the environment shows where.\n")
    monkeypatch.setenv("SHARDWISE_DEBUG", "1")
    assert "Traceback" in run("models", "llama3-70b").err


def test_interrupt_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(args: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_run", interrupted)
    done = run("demo")
    assert (done.code, done.out, done.err) == (130, "", "")


def child(*args: str, stdout: int) -> subprocess.Popen[bytes]:
    code = "import sys; from shardwise.cli import main; sys.exit(main(sys.argv[1:]))"
    return subprocess.Popen(
        [sys.executable, "-c", code, *args], stdout=stdout, stderr=subprocess.PIPE
    )


@pytest.mark.parametrize(("args", "code"), [(("models", "--json"), 0), (("hw", "v", "--json"), 2)])
def test_a_reader_that_leaves(args: tuple[str, ...], code: int) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with child(*args, stdout=writing) as process:
        os.close(writing)
        _, said = process.communicate()
    assert process.returncode == code
    assert b"Traceback" not in said
    assert b"Exception" not in said


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no full device on this system")
def test_a_full_disk() -> None:
    with open("/dev/full", "wb") as full, child("models", stdout=full.fileno()) as process:
        _, said = process.communicate()
    assert process.returncode == 2
    assert said.decode() == "✗ the answer cannot be written: No space left on device.\n"


def test_progress_comes_late_and_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(tty=True)
    monkeypatch.setattr(sys, "stderr", stream)
    with progress.progress("searching"):
        pass
    assert stream.text == ""
    monkeypatch.setattr(progress, "DELAY_S", 0.0)
    with progress.progress("searching"):
        time.sleep(0.05)
    assert stream.text == f"searching, 0 s ...\r{' ' * 18}\r"


def test_progress_in_a_pipe_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "DELAY_S", 0.0)
    monkeypatch.setattr(progress, "REFRESH_S", 0.01)

    def said(*, quiet: bool = False) -> str:
        monkeypatch.setattr(sys, "stderr", stream := Stream())
        with progress.progress("searching", quiet=quiet):
            time.sleep(0.1)
        return stream.text

    assert said() == ""
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    assert set(said().splitlines()) == {"searching, 0 s ..."}
    assert said(quiet=True) == ""


@pytest.mark.parametrize(("command", "names"), [("hw", chip_names()), ("models", presets.names())])
def test_lists_are_whole(command: str, names: tuple[str, ...]) -> None:
    lines = run(command).out.splitlines()
    heads = {f"{market}s" for market in MARKETS} if command == "hw" else set()
    rows = [line for line in lines[1:-1] if line and line not in heads]
    assert heads <= set(lines)
    assert sorted(row.split()[0] for row in rows) == sorted(names)
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("name", chip_names())
def test_every_chip_can_be_shown(name: str) -> None:
    done = run("hw", name)
    assert done.code == 0
    assert done.out.startswith(f"{name}: ")
    assert max(map(len, done.out.splitlines())) <= 80


@pytest.mark.parametrize("name", presets.names())
@pytest.mark.parametrize("table", ["", "--kv", "--flops"])
def test_every_model_can_be_shown(name: str, table: str) -> None:
    done = run("models", name, *table.split())
    assert done.code == 0
    assert max(map(len, done.out.splitlines())) <= 80


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
        (
            "fit llama3-70b v5e --serve",
            {"numpy", "msgspec", "pydantic", "shardwise.plan", "shardwise.book"},
        ),
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
