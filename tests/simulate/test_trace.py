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
        ("arrival,prompt,output\n1,2\n", "line 2: the row is too short, it has no output"),
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


AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9305900,396,109
"""
AZURE_WITH_ZONE = """TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,2162,5
2024-05-10 00:00:01.009930+00:00,2399,6
"""
MOONCAKE = """
{"timestamp": 0, "input_length": 1200, "output_length": 52, "hash_ids": [1, 2, 3]}
{"timestamp": 3000, "input_length": 1300, "output_length": 26, "hash_ids": [1, 2, 4]}
{"timestamp": 3500, "input_length": 700, "output_length": 40, "hash_ids": [1, 9]}
{"timestamp": 4000, "input_length": 300, "output_length": 40, "hash_ids": [10]}
"""


def test_azures_traces_are_read_as_they_are(tmp_path: Path) -> None:
    first, second = read_trace(write(tmp_path, AZURE))
    assert (first.arrival_s, first.prompt, first.output) == (0, 374, 44)
    assert second.arrival_s == pytest.approx(4.25)
    first, second = read_trace(write(tmp_path, AZURE_WITH_ZONE))
    assert second[1:4] == (1, 2399, 6)


def test_mooncakes_traces_share_the_blocks_of_equal_ids(tmp_path: Path) -> None:
    requests = list(read_trace(write(tmp_path, MOONCAKE, "t.jsonl")))
    assert [request.arrival_s for request in requests] == [0, 3, 3.5, 4]
    assert [request.shared for request in requests] == [1024, 1024, 512, 0]
    keys = [request.prefix_keys(16) for request in requests]
    assert keys[0] == keys[1]
    assert len(keys[0]) == 1024 // 16
    assert keys[2] == keys[0][: 512 // 16]
    assert keys[3] == ()


def test_blocks_that_are_no_part_of_a_recorded_block_are_shared_whole(tmp_path: Path) -> None:
    """A block that reaches into the next 512 tokens is shared only if these are equal too."""
    long, branch, *_ = list(read_trace(write(tmp_path, MOONCAKE, "t.jsonl")))
    other = branch._replace(prefix=branch.prefix._replace(ids=(1, 5)))
    assert long.prefix_keys(384)[0] == other.prefix_keys(384)[0]
    assert long.prefix_keys(384)[1] != other.prefix_keys(384)[1]


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("t.csv", "TIMESTAMP,ContextTokens\n", "no column GeneratedTokens. Columns: TIMESTAMP, C"),
        (
            "t.csv",
            "TIMESTAMP,ContextTokens,GeneratedTokens\nnoon,1,2\n",
            'line 2: arrival "noon" is not a number of seconds',
        ),
        (
            "t.csv",
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46,1,0\n",
            'line 2: output "0" is not a whole number of tokens, at least 1',
        ),
        (
            "t.jsonl",
            '{"timestamp": "x", "input_length": 1, "output_length": 1}',
            'line 1: arrival "x" is not a number of seconds',
        ),
        (
            "t.jsonl",
            '{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": ["a"]}',
            "line 1: shared \"hash_ids ['a']\" is not a whole number",
        ),
        (
            "t.jsonl",
            '{"timestamp": 0, "input_length": 1, "output_length": 1, "ids": []}',
            'unknown column "ids". Columns: timestamp, input_length, output_length, hash_ids',
        ),
    ],
)
def test_what_is_wrong_in_a_published_trace_is_named(
    tmp_path: Path, name: str, text: str, told: str
) -> None:
    with pytest.raises(BadFile) as caught:
        read_trace(write(tmp_path, text, name))
    assert told in str(caught.value)


def test_a_byte_order_mark_is_no_part_of_a_column(tmp_path: Path) -> None:
    path = tmp_path / "day.csv"
    path.write_text("arrival,prompt,output\n0,8,4\n", encoding="utf-8-sig")
    assert len(read_trace(path)) == 1


def test_a_row_that_is_too_short_and_columns_in_another_case_are_named(tmp_path: Path) -> None:
    path = tmp_path / "day.csv"
    path.write_text("arrival,prompt,output\n0,8\n")
    with pytest.raises(BadFile, match="line 2: the row is too short, it has no output"):
        read_trace(path)
    path.write_text("arrival,prompt,output,prefix,shared\n0,8,4\n")
    assert len(read_trace(path)) == 1  # these columns may be left out
    path.write_text("timestamp,contexttokens,generatedtokens\n0,8,4\n")
    with pytest.raises(BadFile, match="Columns: TIMESTAMP, ContextTokens, GeneratedTokens"):
        read_trace(path)
