"""Output to stdout, which the program that reads it may close early, as `head` does."""

from __future__ import annotations

import os
import sys

from shardwise.errors import BadFile


def replace_closed() -> None:
    """Replace the streams with which the shell started no stream (`>&-`) by one to nowhere.

    Raises:
        BadFile: stdout is closed, so that no answer can be written.
    """
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
        raise BadFile("the answer cannot be written: stdout is closed.")


def write_answer(text: str) -> None:
    """Write to stdout. If the reader has closed it, the text is dropped without an error.

    Raises:
        BadFile: the answer cannot be written, as on a full disk.
    """
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        # Python flushes stdout once more when it exits; that must not raise again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise BadFile(f"the answer cannot be written: {error.strerror}.") from None


def reserve_stdout() -> None:
    """Reserve stdout for the answer: what libraries print to it from now on goes to stderr."""
    sys.stdout.flush()
    descriptor = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = os.fdopen(descriptor, "w", encoding=sys.stdout.encoding, errors="replace")
