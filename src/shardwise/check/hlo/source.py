"""Source lines of instructions: the lines of the traced function, from the tables of the program.

JAX records the frames of Python under which each instruction was traced, innermost first. Frames of
JAX itself are left out, but not those of other libraries. An instruction is placed at its innermost
frame outside installed libraries, where its author can change it; if there is none, at the
innermost frame.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from dataclasses import dataclass

from shardwise.check.source_line import SourceLine

_TABLE = re.compile(r"^(FileNames|FileLocations|StackFrames)\n((?:\d+ .*\n)+)", re.M)
_FILE = re.compile(r'^(\d+) "(.*)"$', re.M)
_LOCATION = re.compile(r"^(\d+) \{file_name_id=(\d+) .*?\bline=(\d+)", re.M)
_FRAME = re.compile(r"^(\d+) \{file_location_id=(\d+)(?: parent_frame_id=(\d+))?", re.M)
_FRAME_ID = re.compile(r"\bstack_frame_id=(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceTable:
    """The tables of a program.

    Args:
        lines: number of a location -> source line.
        frames: number of a stack frame -> its location, and the frame that called it, 0 for none.
        callers: source line -> the lines that called it.
    """

    lines: Mapping[int, SourceLine]
    frames: Mapping[int, tuple[int, int]]
    callers: Mapping[SourceLine, Set[SourceLine]]

    def lines_of(self, attributes: str) -> tuple[SourceLine, ...]:
        """The source line of an instruction and one more of its call chain, from its attributes.

        They are the innermost line and the line that called it, but in the other order if the
        innermost is called from several lines: it is then a helper, such as one that constrains
        shardings.
        """
        frame_id = _FRAME_ID.search(attributes)
        lines = _chain(int(frame_id[1]), self.lines, self.frames)[:2] if frame_id else ()
        if lines and len(self.callers.get(lines[0], ())) > 1:
            return lines[::-1]
        return lines


def _chain(
    frame: int, lines: Mapping[int, SourceLine], frames: Mapping[int, tuple[int, int]]
) -> tuple[SourceLine, ...]:
    """The lines of the user in a stack, innermost first; those of libraries if it has no others."""
    own: dict[SourceLine, None] = {}
    library: dict[SourceLine, None] = {}
    while frame in frames:
        location, frame = frames[frame]
        line = lines[location]
        (library if line.is_library else own)[line] = None
    return tuple(own or library)


def parse_sources(text: str) -> SourceTable:
    """Parse the tables of a program's text; they are empty if it has none."""
    header = text.partition("\n%")[0]
    tables = dict(_TABLE.findall(header))
    files = {}
    for number, name in _FILE.findall(tables.get("FileNames", "")):
        files[int(number)] = name
    lines = {}
    for number, file, line in _LOCATION.findall(tables.get("FileLocations", "")):
        lines[int(number)] = SourceLine(files[int(file)], int(line))
    frames = {}
    for number, location, parent in _FRAME.findall(tables.get("StackFrames", "")):
        # The id of the caller is written one higher; 1 stands for no caller.
        frames[int(number)] = (int(location), int(parent or 1) - 1)
    callers: dict[SourceLine, set[SourceLine]] = {}
    for frame in frames:
        chain = _chain(frame, lines, frames)
        if len(chain) > 1:
            callers.setdefault(chain[0], set()).add(chain[1])
    return SourceTable(lines=lines, frames=frames, callers=callers)
