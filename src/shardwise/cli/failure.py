"""Errors on stderr: one line for each problem, never a traceback."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections.abc import Sequence
from typing import TextIO

from shardwise import __version__
from shardwise.cli.streams import write_answer
from shardwise.errors import ShardwiseError

WIDTH = 80


def report(error: ShardwiseError, *, as_json: bool) -> int:
    """Write the problems to stderr, and with --json a document to stdout. Return the exit code."""
    sys.stderr.write("".join(_marked(problem, sys.stderr) for problem in error.problems))
    if as_json:
        document = {
            "type": type(error).__name__,
            "problems": error.problems,
            "exit_code": error.exit_code,
        }
        write_answer(json.dumps({"error": document}, indent=1) + "\n")
    return error.exit_code


def report_bug(error: Exception, args: Sequence[str]) -> int:
    """Say that it is a bug and how to report it. SHARDWISE_DEBUG=1 shows the traceback."""
    if os.environ.get("SHARDWISE_DEBUG"):
        import traceback

        traceback.print_exception(error)
    command = " ".join(("shardwise", *args))
    problem = (
        f"a bug in shardwise {__version__}, not a mistake of yours: {type(error).__name__}: "
        f"{error}. Please report it with this command: {command}"
    )
    sys.stderr.write(_marked(problem, sys.stderr))
    sys.stderr.write(_wrapped("  ", "SHARDWISE_DEBUG=1 in the environment shows where."))
    return 1


def _marked(problem: str, stream: TextIO) -> str:
    """`✗ ` and the problem, wrapped; `x ` where the stream has no such sign."""
    first, *following = problem.split("\n")
    text = _wrapped("✗ ", first) + "".join(_wrapped("  ", line) for line in following)
    encoding = stream.encoding or "utf-8"
    plain = text.replace("✗ ", "x ", 1)
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return plain.encode(encoding, "replace").decode(encoding)
    return text


def _wrapped(mark: str, line: str) -> str:
    # What was typed may hold anything; a terminal only gets what can be read.
    readable = "".join(character if character.isprintable() else "?" for character in line)
    return (
        textwrap.fill(
            readable, WIDTH, initial_indent=mark, subsequent_indent="  ", break_on_hyphens=False
        )
        + "\n"
    )
