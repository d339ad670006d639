"""`sweep --serve` and `explain --serve`: screens of 80 columns, formats, exit codes, mistakes."""

from __future__ import annotations

import csv
import io
import json
import shlex
from pathlib import Path

import pytest

from tests.golden.terminal import run

SWEEP = "sweep llama3-70b v5e:4x2 --serve --dtype int8 --batch 1,8,64 --peak"


LONG = (
    "sweep deepseek-v3 h200:8,h200:16 --serve --dtype fp8 --batch 8,64 --tensor 1-8*2 --peak",
    "sweep llama3-8b h100:8 --serve --replicas 1-8*2 --kv all --weights all --context 4k,8k",
)


@pytest.mark.parametrize(
    "command",
    [
        SWEEP,
        *(pytest.param(command, marks=pytest.mark.oracle) for command in LONG),
        "sweep llama3-70b v5e:4x4 --serve --dtype bf16,int8,int4 --batch 1,32,64",
        "sweep llama3-8b h100 --serve --prompt 1024 --output 64 --rate 1/s,40/s --tpot 10ms,40ms",
        "sweep llama3-8b h100:1 --serve --draft 0,2 --acceptance 60%,80% --kv-dtype bf16,fp8",
        "explain llama3-8b h100 --serve --prompt 2048 --output 256 -v",
        "explain mixtral-8x7b v5e --serve --dtype int8 --tpot 30ms --what-if 'hbm_bandwidth x2'",
        "explain deepseek-v3 h200:16 --serve --dtype fp8 --prompt 4096 --output 512 --disaggregate",
        "explain gemma3-27b h100:4 --serve --context 32k --mesh tensor=4",
    ],
)
def test_screens_have_80_columns(command: str) -> None:
    said = run(*shlex.split(command))
    assert said.code == 0, said.err
    assert said.err == ""
    assert max(map(len, said.out.splitlines())) <= 80
    document = json.loads(run(*shlex.split(command), "--json").out)
    assert document["model"]


def test_plan_sweep_and_explain_answer_a_rate_alike() -> None:
    words = "llama3-8b h100 --serve --prompt 2048 --output 256 --rate 20/s --json"
    plan, sweep, explanation = (
        json.loads(run(*shlex.split(f"{verb} {words}")).out)
        for verb in ("plan", "sweep", "explain")
    )
    (row,) = sweep["rows"]
    simulated = plan["estimate"]["traffic"]
    assert row["tpot_s"] == simulated["tpot_s"]["p50"]
    assert row["ttft_s"] == simulated["ttft_s"]["p50"]
    assert row["n_chips"] == plan["strategy"]["n_chips"]
    price = plan["estimate"]["usd_per_million_tokens"]["output"]
    assert row["usd_per_million_output_tokens"] == price
    assert explanation["mesh"] == plan["strategy"]["mesh"]
    assert explanation["batch"] == row["batch"] == plan["estimate"]["decode"]["batch"]


def test_formats_agree() -> None:
    rows = json.loads(run(*shlex.split(SWEEP), "--json").out)["rows"]
    flat = [json.loads(s) for s in run(*shlex.split(SWEEP), "-o", "jsonl").out.splitlines()]
    table = list(csv.DictReader(io.StringIO(run(*shlex.split(SWEEP), "-o", "csv").out)))
    for row, one, cells in zip(rows, flat, table, strict=True):
        assert one["tpot_s"] == row["tpot_s"]
        assert cells["tpot_s"] == ("" if row["tpot_s"] is None else str(row["tpot_s"]))
    markdown = run(*shlex.split(SWEEP), "-o", "md").out.splitlines()
    assert markdown[:2] == ["All rows: tensor 8, v5e:4x2.", ""]
    assert markdown[2].startswith("| batch | TPOT | roofline | tok/s | tok/s/chip |")
    assert {line.count("|") for line in markdown[2:]} == {9}
    assert "does not fit" in markdown[-1]


def test_a_saved_plan_is_explained(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    words = ("llama3-70b", "v5e:4x4", "--serve", "--batch", "32", "--peak")
    assert run("plan", *words, "-o", str(path)).code == 0
    saved, asked = run("explain", str(path)), run("explain", *words)
    assert saved.code == 0
    assert saved.out == asked.out
    assert run("explain", str(path), "--serve").out == asked.out


@pytest.mark.parametrize(
    ("command", "code", "part"),
    [
        ("sweep llama3-70b v5e:2x2 --serve --batch 1,2", 3, ""),
        ("sweep llama3-70b v5e:4x4 --serve --train", 2, "different work"),
        ("sweep llama3-70b v5e:4x4 --serve --context 8k --prompt 1k", 2, "belong together"),
        ("sweep llama3-70b v5e:4x4 --serve --rate 2/s", 2, "--rate needs"),
        ("sweep llama3-70b v5e:4x4 --serve --rate 2/d --prompt 9 --output 9", 2, "20/s"),
        ("sweep llama3-70b v5e:4x4 --serve --acceptance 50%", 2, "--acceptance needs --draft"),
        ("sweep llama3-70b v5e:4x4,v5e:4x4 --serve", 2, "given twice"),
        ("sweep llama3-70b v5x --serve --batch 8-1 --dtype bf17 -o xls", 2, "goes down"),
        ("sweep llama3-70b v5e:4x4 --serve --tensor 1-1024+1", 2, "over 1,000 values"),
        ("explain llama3-70b --serve", 2, "not a plan.json"),
        ("explain llama3-70b v5e:2x2 --serve", 3, "Smallest that fit"),
        ("explain plan.json --serve --batch 4", 2, "--batch: a saved plan has its own"),
        ("explain llama3-70b v5e:4x4 --serve --mesh tensor=16 --fix pipe=1", 2, "Use one"),
        ("explain llama3-70b v5e:4x4 --serve --what-if 'ici 2'", 2, "NAME xFACTOR"),
        ("explain llama3-70b v5e:4x4 --serve --what-if 'node x2'", 2, "no figure"),
    ],
)
def test_mistakes(command: str, code: int, part: str) -> None:
    said = run(*shlex.split(command))
    assert said.code == code, said.out
    assert part in said.err.replace("\n  ", " ")
    assert "Traceback" not in said.err


def test_explain_of_training_is_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    train = ("llama3-8b", "v5e:4x4", "--train", "--batch", "16x2048", "-o", str(path))
    assert run("plan", *train).code == 0
    said = run("explain", str(path), "--serve")
    assert said.code == 2
    assert "plan of training: leave --serve out" in said.err


def test_users_are_swept_as_planned() -> None:
    job = "--serve --prompt 2048 --output 256 --tpot 30ms"
    said = run(*f"sweep llama3-8b h100:1 {job} --users 16,500 --json".split())
    assert said.code == 0, said.err
    kept, refused = json.loads(said.out)["rows"]
    plan = json.loads(run(*f"plan llama3-8b h100:1 {job} --users 16 --json".split()).out)
    assert (kept["swept"]["users"], refused["swept"]["users"]) == (16, 500)
    assert kept["tpot_s"] == plan["estimate"]["traffic"]["tpot_s"]["p50"]
    assert "holds about" in refused["problem"]


def test_users_without_lengths_or_bounds_are_refused() -> None:
    for words, told in (
        ("--users 16", "--users needs the length of requests"),
        ("--users 16", "--users needs a bound"),
        ("--users 16 --rate 5/s --prompt 64 --output 64 --tpot 30ms", "give one"),
    ):
        said = run(*f"sweep llama3-8b h100:1 --serve {words}".split())
        assert said.code == 2
        assert told in said.err.replace("\n  ", " ")


def test_formats_of_a_dtype_are_read_as_the_dtype() -> None:
    for words in ("--train --batch 64x2048", "--serve --context 4096"):
        for name, dtype in (("mxfp8", "fp8"), ("MXFP8", "fp8"), ("nvfp4", "fp4")):
            plans = [
                run(*f"plan llama3-8b b200:8 {words} --dtype {d} --json".split())
                for d in (name, dtype)
            ]
            assert plans[0].code == 0, plans[0].err
            assert plans[0].out == plans[1].out
    rows = json.loads(
        run(*["sweep", "llama3-8b", "b200:8", "--serve", "--dtype", "bf16,mxfp8", "--json"]).out
    )
    assert [row["dtype"] for row in rows["rows"]] == ["bf16", "fp8"]
    assert run(*["fit", "llama3-8b", "b200:8", "--serve", "--dtype", "mxfp8"]).code == 0
