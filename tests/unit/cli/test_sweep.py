"""`shardwise sweep`: tables for the eye and for programs, and every mistake."""

from __future__ import annotations

import csv
import io
import json
import shlex

import pytest

import shardwise as sw
from shardwise import units
from shardwise.cli.machines import parse_systems
from shardwise.errors import BadInput
from tests.golden.terminal import run

SWEEP = "sweep llama3-8b v5e:4x4 --train --batch 16x1024-2048*2 --tensor 2,3"


def test_the_screen() -> None:
    said = run(*shlex.split(SWEEP))
    assert said.code == 0, said.err
    assert said.err == ""
    lines = said.out.splitlines()
    assert lines[0].startswith("Highest throughput: seq ")
    assert max(map(len, lines)) <= 80
    assert lines[2] == "all  ZeRO-3, tensor 2 × fsdp 8"
    assert lines[4].split()[:3] == ["seq", "tensor", "step"]
    assert sum("none (1)" in line for line in lines) == 2
    assert any(line.startswith("(1)  tensor 3 ") for line in lines)


def test_formats_agree() -> None:
    rows = json.loads(run(*shlex.split(SWEEP), "--json").out)["rows"]
    lines = run(*shlex.split(SWEEP), "-o", "jsonl").out.splitlines()
    flat = [json.loads(line) for line in lines]
    table = list(csv.DictReader(io.StringIO(run(*shlex.split(SWEEP), "-o", "csv").out)))
    assert len(rows) == len(flat) == len(table) == 4
    for row, one, cells in zip(rows, flat, table, strict=True):
        step = row["step_s"]["expected"] if row["step_s"] else None
        assert one["step_s"] == step
        assert cells["step_s"] == ("" if step is None else str(step))
        assert one["seq"] == row["swept"]["seq"]
    markdown = run(*shlex.split(SWEEP), "-o", "md").out.splitlines()
    assert markdown[:2] == ["All rows: ZeRO-3, tensor 2 × fsdp 8.", ""]
    headers = [header.strip() for header in markdown[2].split("|")[1:-1]]
    assert headers[:6] == ["seq", "tensor", "step", "tok/s/chip", "MFU", "HBM"]
    assert markdown[3].startswith("|---:|---:|---:|---:|---:|---:|---")
    assert len(markdown[2:]) == 6
    assert {line.count("|") for line in markdown[2:]} == {len(headers) + 1}


def test_what_differs_is_a_column_and_what_does_not_is_said_once() -> None:
    """Of what the sweep found, remat, ZeRO, microbatches and mesh, nothing is hidden."""
    base = "sweep llama3.2-1b v5e:4x4 --train --batch 32x2048 --tensor 1,2 --precision all"
    rows = json.loads(run(*shlex.split(base), "--json").out)["rows"]
    lines = run(*shlex.split(base)).out.splitlines()
    common = next(line for line in lines if line.startswith("all  "))
    headers = next(line for line in lines if line.startswith("tensor")).split()
    for name, header in (("remat", "remat"), ("zero", "ZeRO"), ("n_microbatches", "microbatches")):
        values = {row[name] for row in rows}
        assert (header in headers) == (len(values) > 1)
        if name == "remat" and len(values) == 1:
            assert f"remat {rows[0]['remat']}" in common
    assert "precision" in headers  # whole words
    assert max(map(len, lines)) <= 80
    assert all(units.show_gib(row["memory_bytes"]) in "\n".join(lines) for row in rows)


def test_a_table_that_is_too_wide_names_strategies_by_letters() -> None:
    base = "sweep llama3.2-1b v5e:4x4,v5e:4x8 --train --batch 32-64*2x2048 --tensor 1,2"
    lines = run(*shlex.split(f"{base} --pipe 1,2 --schedule gpipe,1f1b --zero 1")).out.splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.startswith("A  ") for line in lines)


def test_words_and_all() -> None:
    base = "sweep llama3-8b h100:8 --train --batch 8x2048 -o jsonl"
    said = run(*shlex.split(f"{base} --remat all --dtype bf16,fp8"))
    rows = [json.loads(line) for line in said.out.splitlines()]
    assert {row["dtype"] for row in rows} == {"bf16", "fp8"}
    assert {"none", "full"} <= {row["remat"] for row in rows}
    assert "auto" not in {row["remat"] for row in rows}


def test_nothing_to_show_is_no_plan() -> None:
    said = run(*shlex.split("sweep llama3-70b v5e:2x2 --train --batch 4x4096"))
    assert said.code == 3
    assert said.out.startswith("No plan for any of 1 combinations.")


def test_the_count_is_for_terminals() -> None:
    said = run(*shlex.split(SWEEP), tty=True)
    assert "3 of 4 plans ..." in said.err
    assert said.err.endswith("\r")


def test_machines() -> None:
    def names(text: str) -> list[str]:
        return [system.name for system in parse_systems(text)]

    assert names("v5e:4x4") == ["v5e:4x4"]
    assert names("h100:8-32*2") == ["h100:8", "h100:16", "h100:32"]
    assert names("h100:8,16,v5e:4x4,v5p:4x4x4*2") == [
        "h100:8", "h100:16", "v5e:4x4", "v5p:4x4x4*2",
    ]  # fmt: skip
    assert names("h100:8-16*2,scale_out=25GB/s") == [
        "h100:8,scale_out=25GB/s", "h100:16,scale_out=25GB/s",
    ]  # fmt: skip
    assert sw.hardware("h100:16") in parse_systems("h100:16,8")
    with pytest.raises(BadInput) as error:
        parse_systems("h100:8-4*2,h10:8,h100:8,h100:8")
    assert len(error.value.problems) >= 3


BAD = [
    (
        "sweep llama3-8b v5e:4x4 --batch 16x2048",
        2,
        "✗ what to plan is not said. Add --train or --serve.",
    ),
    ("sweep llama3-8b v5e:4x4 --train", 2, "✗ no batch is given. Add --batch SEQUENCESxLENGTH"),
    (f"{SWEEP} --pipe 0", 2, '✗ pipe "0" is below 1.'),
    (f"{SWEEP} --zero 4", 0, "zero 4 is not a stage of ZeRO"),
    (f"{SWEEP} --schedule 1f2b", 2, '✗ unknown schedule "1f2b". Close: "1f1b"'),
    (f"{SWEEP} --remat none,none", 2, "✗ remat none is given twice."),
    (f"{SWEEP} --dtype bf17 -o xlsx", 2, '✗ unknown dtype "bf17". Close: "bf16"'),
    (f"{SWEEP} --dtype bf17 -o xlsx", 2, '✗ unknown format "xlsx". Known: "csv", "jsonl", "md".'),
    (f"{SWEEP} --micro-batch 1-400+1", 2, "is 1,600 plans; at most 1,000 are searched."),
    ("sweep llama3-8b v5e:4x4,v5e:4x4 --train --batch 1x1", 2, "✗ hardware v5e:4x4 is given twice"),
    ("sweep llama3-8b v5e --train --batch 1x1", 2, "✗ v5e needs a size"),
]


@pytest.mark.parametrize(("command", "code", "words"), BAD)
def test_mistakes(command: str, code: int, words: str) -> None:
    said = run(*shlex.split(command))
    told = " ".join((said.err + said.out).split())
    if code:
        assert said.code == code
        assert said.out == ""
    assert words in told
