"""Lines of the user's own source files, not of Python or of installed libraries."""

from __future__ import annotations

import os
import sysconfig
import traceback
from dataclasses import dataclass
from pathlib import Path

_PACKAGE = str(Path(__file__).parents[1])
_LIBRARIES = {_PACKAGE, *map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib"))}


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line of a source file, by its path; `str` is `train.py:31`, as seen from this folder."""

    file: str
    line: int

    def __str__(self) -> str:
        path = Path(self.file)
        if path.is_relative_to(Path.cwd()):
            return f"{os.path.relpath(path)}:{self.line}"
        return f"{path.name}:{self.line}"

    @property
    def is_library(self) -> bool:
        """Whether the file belongs to Python, to an installed package, or to this one."""
        if self.file.startswith("<"):
            return True
        return any(self.file.startswith(f"{folder}{os.sep}") for folder in _LIBRARIES)


def line_of_error(error: BaseException) -> SourceLine | None:
    """The innermost line of the user's code that an exception passed; None if there is none."""
    line = None
    for frame, number in traceback.walk_tb(error.__traceback__):
        source = SourceLine(frame.f_code.co_filename, number)
        if not source.is_library:
            line = source
    return line
