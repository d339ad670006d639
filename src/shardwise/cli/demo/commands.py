"""Commands as a user types them, run in the folder of the demo."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shardwise.errors import ShardwiseError

JUDGED = 4  # exit code: an answer, and not the wanted one


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """A command and what it printed."""

    command: str
    output: str


class CommandFailed(ShardwiseError):
    """A command of the demo ended with a fault; the message is what it printed."""


def typed(folder: Path, *words: str, shown: Sequence[str] = ()) -> Screen:
    """Run `shardwise WORDS` in a folder.

    Args:
        shown: the words as a person would type them, if they differ: `*.py` for many files.

    Raises:
        CommandFailed: it gave no answer. A check that a plan does not pass is an answer.
    """
    done = subprocess.run(
        arguments(*words),
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="replace",
    )
    command = " ".join(shown) if shown else shlex.join(words)
    if done.returncode not in (0, JUDGED):
        said = done.stderr.strip() or done.stdout.strip()
        raise CommandFailed(f"shardwise {command}\n{said}")
    return Screen(command=f"shardwise {command}", output=done.stdout)


def arguments(*words: str) -> list[str]:
    """The words of a process that runs this package with this Python."""
    return [sys.executable, "-m", "shardwise", *words]


def environment() -> dict[str, str]:
    """The environment of the commands: plain text of 80 columns."""
    return {**os.environ, "NO_COLOR": "1", "COLUMNS": "80", "PYTHONUTF8": "1"}
