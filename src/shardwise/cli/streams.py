"""Writing to stdout when its reader may have gone."""

from __future__ import annotations

import os
import sys

from shardwise.errors import BadFile


def write_answer(text: str) -> None:
    """Write to stdout. A reader that has gone is no error.

    Raises:
        BadFile: the answer cannot be written, as on a full disk.
    """
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        # What is left in the buffer must not raise again when Python exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError):
            raise BadFile(f"the answer cannot be written: {error.strerror}.") from None


def answers_only() -> None:
    """Leave stdout to the answer: what libraries print there from now on goes to stderr."""
    sys.stdout.flush()
    descriptor = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = os.fdopen(descriptor, "w", encoding=sys.stdout.encoding, errors="replace")
