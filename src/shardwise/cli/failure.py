"""Errors on stderr: one paragraph for each problem, and no traceback unless it is asked for."""

from __future__ import annotations

import errno
import json
import os
import sys
import textwrap
from collections.abc import Sequence
from typing import TextIO

from shardwise import __version__
from shardwise.cli.streams import write_answer
from shardwise.errors import BadFile, ShardwiseError

WIDTH = 80  # characters
SHOWN = 40  # characters of a name that is too long


def report(error: ShardwiseError, *, as_json: bool) -> int:
    """Write the problems to stderr, and with --json also as a document to stdout.

    Returns:
        The exit code.
    """
    sys.stderr.write("".join(_marked(problem, sys.stderr) for problem in error.problems))
    if as_json:
        document = {
            "type": type(error).__name__,
            "problems": error.problems,
            "exit_code": error.exit_code,
        }
        write_answer(json.dumps({"error": document}, indent=1) + "\n")
    return error.exit_code


def name_too_long(error: Exception) -> BadFile | None:
    """The problem of a path that no file can have: only a user can have named it; else None."""
    if not isinstance(error, OSError) or error.errno != errno.ENAMETOOLONG:
        return None
    path = str(error.filename)
    return BadFile(f"{path[:SHOWN]}... is {len(path):,} characters: {error.strerror}.")


def report_bug(error: Exception, args: Sequence[str]) -> int:
    """Write that an error is a bug of the package, and how to report it; return the exit code.

    SHARDWISE_DEBUG=1 in the environment also shows the traceback.
    """
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


def note(text: str) -> None:
    """Write a note to stderr about an input that was taken, such as a key that is ignored."""
    sys.stderr.write(_wrapped("note: ", text))


def _marked(problem: str, stream: TextIO) -> str:
    """A wrapped problem after the mark `✗ `, or `x ` if `stream` cannot encode the text."""
    first, *following = problem.split("\n")
    text = _wrapped("✗ ", first) + "".join(_wrapped("  ", line) for line in following)
    encoding = stream.encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        ascii_mark = text.replace("✗ ", "x ", 1)
        return ascii_mark.encode(encoding, "replace").decode(encoding)
    return text


def _wrapped(mark: str, line: str) -> str:
    # A problem quotes what was typed, which may contain commands to the terminal.
    printable = "".join(character if character.isprintable() else "?" for character in line)
    return (
        textwrap.fill(
            printable, WIDTH, initial_indent=mark, subsequent_indent="  ", break_on_hyphens=False
        )
        + "\n"
    )
