"""Run the command line in this process and keep what it says."""

from __future__ import annotations

import contextlib
import io
import math
from dataclasses import dataclass
from unittest import mock

from shardwise.cli import main, progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """Exit code, stdout and stderr of one command."""

    code: int
    out: str
    err: str


class Stream(io.TextIOWrapper):
    """A stream that remembers its bytes and says whether it is a terminal."""

    def __init__(self, encoding: str = "utf-8", tty: bool = False) -> None:
        self.written = io.BytesIO()
        self._tty = tty
        super().__init__(self.written, encoding=encoding, newline="\n")

    def isatty(self) -> bool:
        return self._tty

    @property
    def text(self) -> str:
        self.flush()
        return self.written.getvalue().decode(self.encoding)


def run(*args: str, encoding: str = "utf-8", tty: bool = False) -> Said:
    """`shardwise ARGS...` on streams of this encoding, on a machine that is never slow."""
    out, err = Stream(encoding, tty), Stream(encoding, tty)
    at_once = mock.patch.object(progress, "LINE_EVERY_S", math.inf)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), at_once:
        code = main(list(args))
    return Said(code=code, out=out.text, err=err.text)
