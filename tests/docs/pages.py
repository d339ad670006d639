"""Run a Markdown page from top to bottom and say where it no longer shows what happens.

A page is run in an empty folder, its fenced blocks in the order in which a reader meets them:

    ```console         lines "$ shardwise ..." are run as in a shell, and what follows each is
                       compared. A line "..." stands for any number of lines; "[exit N]" at the
                       end for an exit code other than 0, when errors are shown too.
    ```python          with ">>>": every example is run and compared. Without: it is executed.
    ```toml chip.toml  a file name after the language: the file that the rest of the page uses.

All Python of a page shares one set of names. Anything else, ```text say, is only read.
"""

from __future__ import annotations

import contextlib
import doctest
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.golden import terminal

FENCE = re.compile(r"(`{3,})\s*(\w*)\s*(.*?)\s*$")
FILE_NAME = re.compile(r"[\w./-]+\.\w+")
ANY_LINES = "..."


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block: its language, the file that it is (or ""), its first line in the page."""

    language: str
    file: str
    first: int
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """Something run: what the page shows in `shown` from line `first` on, and what came out."""

    command: str
    first: int
    shown: tuple[str, ...]
    got: tuple[str, ...]

    @property
    def agrees(self) -> bool:
        return matches(self.shown, self.got)

    def __str__(self) -> str:
        told = [f"{self.first}: {self.command}", "  the page shows"]
        told += [f"    {line}" for line in self.shown]
        told += ["  but this came out", *(f"    {line}" for line in self.got)]
        return "\n".join(told)


def matches(shown: tuple[str, ...], got: tuple[str, ...]) -> bool:
    """Are the lines equal, a line `...` of `shown` standing for any number of lines?"""
    if ANY_LINES not in shown:
        return shown == got
    here = shown.index(ANY_LINES)
    if shown[:here] != got[:here]:
        return False
    rest = shown[here + 1 :]
    return any(matches(rest, got[start:]) for start in range(here, len(got) + 1))


def blocks(page: str) -> Iterator[Block]:
    """The fenced blocks of a page that start at the margin."""
    opening: re.Match[str] | None = None
    first = 0
    lines: list[str] = []
    for number, line in enumerate(page.splitlines(), 1):
        if opening is None:
            opening, first, lines = FENCE.match(line), number + 1, []
        elif line.rstrip() == opening[1]:
            file = opening[3] if FILE_NAME.fullmatch(opening[3]) else ""
            yield Block(language=opening[2], file=file, first=first, lines=tuple(lines))
            opening = None
        else:
            lines.append(line)


def run_page(page: str, folder: Path) -> list[Example]:
    """Run every block of `page` in `folder`."""
    examples: list[Example] = []
    names: dict[str, Any] = {"__name__": "__page__"}
    for block in blocks(page):
        if block.file:
            path = folder / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)
        elif block.language == "console":
            examples += run_console(block, folder)
        elif block.language in ("python", "pycon"):
            with contextlib.chdir(folder):
                examples += run_python(block, names)
    return examples


def run_console(block: Block, folder: Path) -> Iterator[Example]:
    """Run the commands of a block that start with `$ shardwise`; others are only read."""
    at = 0
    while at < len(block.lines):
        command = block.lines[at]
        at += 1
        while command.endswith("\\") and at < len(block.lines):
            command = command[:-1] + block.lines[at].removeprefix("> ").strip()
            at += 1
        start = at
        while at < len(block.lines) and not block.lines[at].startswith("$ "):
            at += 1
        if command.startswith("$ shardwise"):
            yield Example(
                command=command,
                first=block.first + start,
                shown=tidy("\n".join(block.lines[start:at])),
                got=run_command(command.removeprefix("$ "), folder),
            )


def run_command(command: str, folder: Path) -> tuple[str, ...]:
    """What a person at an 80-column terminal without colour sees of a command.

    Alone or before a pipe it runs in this process, which saves a start for each.
    """
    said, pipe, rest = command.partition(" | ")
    words = list(shlex.shlex(said, posix=True, punctuation_chars=True))
    if "|" in rest or any(set(word) <= set("();<>|&") for word in words):
        return run_shell(command, folder)
    with contextlib.chdir(folder):
        found = terminal.run(*shlex.split(said)[1:])
    if pipe:
        return run_shell(rest, folder, found.out)
    if found.code == 0:  # what stderr holds then is progress, shown for its time only
        return tidy(found.out)
    return (*tidy(found.out + found.err), f"[exit {found.code}]")


def run_shell(command: str, folder: Path, given: str = "") -> tuple[str, ...]:
    """The same by the shell."""
    scripts = str(Path(sys.executable).parent)
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
        | {"NO_COLOR": "1", "COLUMNS": "80", "TERM": "dumb", "PYTHONUTF8": "1"},
        input=given,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
    )
    if done.returncode == 0:
        return tidy(done.stdout)
    return (*tidy(done.stdout + done.stderr), f"[exit {done.returncode}]")


def tidy(text: str) -> tuple[str, ...]:
    """Lines without blanks at their ends, and without empty lines at the end."""
    return tuple(line.rstrip() for line in text.rstrip().splitlines())


class _Recorder(doctest.DocTestRunner):
    """Keeps what came out instead of printing it."""

    def __init__(self) -> None:
        super().__init__(verbose=False, optionflags=doctest.ELLIPSIS)
        self.failed: list[tuple[doctest.Example, str]] = []

    def report_failure(self, out: Any, test: Any, example: doctest.Example, got: str) -> None:
        self.failed.append((example, got))

    def report_unexpected_exception(
        self, out: Any, test: Any, example: doctest.Example, exc_info: Any
    ) -> None:
        told = f"Traceback (most recent call last):\n    ...\n{exc_info[0].__name__}: {exc_info[1]}"
        self.failed.append((example, told))


def run_python(block: Block, names: dict[str, Any]) -> Iterator[Example]:
    """Run the `>>>` examples of a block, or all of a block that has none, with `names`."""
    if not any(line.startswith(">>> ") for line in block.lines):
        code = "\n" * (block.first - 1) + block.text
        exec(compile(code, "page", "exec"), names)
        return
    test = doctest.DocTestParser().get_doctest(block.text, names, "page", "page", 0)
    recorder = _Recorder()
    test.globs = names
    recorder.run(test, out=lambda _: None, clear_globs=False)
    failed = {id(example): got for example, got in recorder.failed}
    for example in test.examples:
        shown = tidy(example.want)
        yield Example(
            command=">>> " + example.source.strip(),
            first=block.first + example.lineno + example.source.count("\n"),
            shown=shown,
            got=tidy(failed[id(example)]) if id(example) in failed else shown,
        )


def pages(root: Path) -> list[Path]:
    """The pages that are run: the README and everything under docs/."""
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]


def refreshed(page: str, examples: list[Example]) -> str:
    """The page with what came out in the place of what it showed, where the two differ."""
    lines = page.splitlines()
    for example in sorted(examples, key=lambda e: e.first, reverse=True):
        if not example.agrees:
            start = example.first - 1
            lines[start : start + len(example.shown)] = example.got
    return "\n".join(lines) + "\n"
