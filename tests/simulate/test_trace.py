"""Recorded traffic is read as it was written, and what is wrong in it is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwise.errors import BadFile
from shardwise.simulate import Request, read_trace

CSV = """arrival,prompt,output,prefix,shared
12.5,100,7,,
11.0,50,1,system,32
"""
JSONL = """{"arrival": 12.5, "prompt": 100, "output": 7}

{"arrival": 11, "prompt": 50, "output": 1, "prefix": "system", "shared": 32}
"""


def write(folder: Path, text: str, name: str = "trace.csv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(("name", "text"), [("t.csv", CSV), ("t.jsonl", JSONL)])
def test_requests_are_sorted_and_start_at_0(tmp_path: Path, name: str, text: str) -> None:
    found = list(read_trace(write(tmp_path, text, name)))
    assert found == [Request(0, 0.0, 50, 1, "system", 32), Request(1, 1.5, 100, 7, None, 0)]


def test_a_trace_without_prefixes(tmp_path: Path) -> None:
    found = read_trace(write(tmp_path, "output, prompt ,arrival\n3,2,1\n"))
    assert (found.prefix, found.shared) == (None, None)
    assert list(found) == [Request(0, 0.0, 2, 3)]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("arrival,prompt\n1,2\n", "line 1: no column output. Columns: arrival, prompt, output"),
        ("arrival,prompt,output,size\n", 'line 1: unknown column "size"'),
        ("arrival,prompt,output\n", "has no requests"),
        ("", "line 1: no column arrival"),
        ("arrival,prompt,output\n1,2,3\nsoon,2,3\n", 'line 3: arrival "soon" is not a number'),
        ("arrival,prompt,output\ninf,2,3\n", 'line 2: arrival "inf" is not a number of seconds'),
        ("arrival,prompt,output\n1,2.5,3\n", 'line 2: prompt "2.5" is not a whole number'),
        (
            "arrival,prompt,output\n1,2,0\n",
            'output "0" is not a whole number of tokens, at least 1',
        ),
        ("arrival,prompt,output\n1,2\n", 'line 2: output "None" is not a whole number'),
        ("arrival,prompt,output,shared\n1,2,3,4\n", "line 2: shared 4 is more than the prompt 2"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(BadFile) as caught:
        read_trace(write(tmp_path, text))
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"arrival": 1}', "line 1: no column prompt, no column output"),
        ("[1, 2]", "line 1: not an object"),
        ('\n{"arrival": 1,', "line 2: not JSON"),
        ('{"arrival": true, "prompt": 1, "output": 1}', 'arrival "True" is not a number'),
        ('{"arrival": 1, "prompt": [1], "output": 1}', 'prompt "[1]" is not a whole number'),
    ],
)
def test_what_is_wrong_in_json_is_named(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(BadFile) as caught:
        read_trace(write(tmp_path, text, "t.jsonl"))
    assert told in str(caught.value)


def test_many_problems_are_counted(tmp_path: Path) -> None:
    text = "arrival,prompt,output\n" + "1,x,1\n" * 9
    with pytest.raises(BadFile) as caught:
        read_trace(write(tmp_path, text))
    assert len(caught.value.problems) == 6
    assert caught.value.problems[-1] == "... and 4 more."


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="cannot read"):
        read_trace(tmp_path / "none.csv")
    with pytest.raises(BadFile, match=r"neither \.csv nor \.jsonl"):
        read_trace(write(tmp_path, CSV, "trace.txt"))
