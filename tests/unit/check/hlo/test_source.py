"""Source lines: the user's own before those of libraries, and the caller of a helper before it."""

from __future__ import annotations

import sysconfig

import pytest

from shardwise.check.hlo.source import parse_sources
from shardwise.check.source_line import SourceLine

LIBRARY = f"{sysconfig.get_path('purelib')}/flax/linen.py"
TEXT = f"""HloModule step

FileNames
1 "model.py"
2 "{LIBRARY}"

FunctionNames
1 "f"

FileLocations
1 {{file_name_id=1 function_name_id=1 line=40 end_line=40 column=4 end_column=9}}
2 {{file_name_id=1 function_name_id=1 line=20 end_line=20 column=4 end_column=9}}
3 {{file_name_id=2 function_name_id=1 line=7 end_line=7 column=4 end_column=9}}
4 {{file_name_id=1 function_name_id=1 line=9 end_line=9 column=4 end_column=9}}
5 {{file_name_id=1 function_name_id=1 line=21 end_line=21 column=4 end_column=9}}

StackFrames
1 {{file_location_id=1 parent_frame_id=1}}
2 {{file_location_id=2 parent_frame_id=2}}
3 {{file_location_id=3 parent_frame_id=3}}
4 {{file_location_id=4 parent_frame_id=3}}
5 {{file_location_id=5 parent_frame_id=2}}
6 {{file_location_id=4 parent_frame_id=6}}
7 {{file_location_id=3 parent_frame_id=1}}

%fused (a: f32[8]) -> f32[8] {{
"""


@pytest.mark.parametrize(
    ("frame", "lines"),
    [
        (2, [20, 40]),
        (3, [20, 40]),  # the library's frame is left out
        (4, [20, 9]),  # line 9 is a helper: lines 20 and 21 call it
        (6, [21, 9]),
    ],
)
def test_the_line_of_the_user_and_its_caller(frame: int, lines: list[int]) -> None:
    found = parse_sources(TEXT).lines_of(f'metadata={{op_name="x" stack_frame_id={frame}}}')
    assert [line.line for line in found] == lines
    assert {line.file for line in found} == {"model.py"}


def test_a_stack_of_libraries_alone_and_none() -> None:
    table = parse_sources(TEXT)
    assert table.lines_of("stack_frame_id=7") == (SourceLine(LIBRARY, 7),)
    assert table.lines_of("") == ()
    assert (
        parse_sources("HloModule step\n\n%fused () -> f32[8] {").lines_of("stack_frame_id=7") == ()
    )
