"""`--json`: one document, with the numbers of the screen."""

from __future__ import annotations

import functools
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import shardwise as sw
from shardwise import units
from tests.golden.terminal import run
from tests.golden.transcripts import COMMANDS

ANSWERS = [
    name
    for name in COMMANDS
    if not name.endswith(("help", "1024", "too_large", "refused", "unmet", "_md"))
]
PLAN = "plan llama3-8b v5e:4x4 --train --batch 16x2048 --tokens 1T"


@functools.cache
def document(command: str) -> Any:
    done = run(*shlex.split(command), "--json")
    assert done.err == ""
    return json.loads(done.out)


@pytest.mark.parametrize("name", [name for name in ANSWERS if name != "errors"])
def test_every_answer_is_a_document(name: str) -> None:
    assert document(COMMANDS[name])


def numbers(value: Any) -> Iterator[float]:
    """Every number of a document."""
    if isinstance(value, dict):
        for inner in value.values():
            yield from numbers(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from numbers(inner)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield float(value)


SHOWS = (
    units.show_seconds, units.show_bytes, units.show_gib, units.show_count, units.show_dollars,
    units.significant, lambda n: f"{n:,.0f}", lambda n: f"{units.significant(100 * n, 2)} %",
    lambda n: units.show_rate(n, "FLOP/s"), lambda n: units.show_rate(n, "B/s"),
)  # fmt: skip


def spelled(found: Any) -> set[str]:
    """Every number of a document in every way in which a report may write it, without its unit."""
    texts = (show(abs(n)) for n in numbers(found) for show in SHOWS)
    return {word for text in texts for word in re.findall(r"[\d][\d,.]*", text)}


@pytest.mark.parametrize("name", ["plan_v5p", "plan_h100", "plan_mesh", "shard", "roofline_typed"])
def test_numbers_of_the_screen_are_in_the_document(name: str) -> None:
    lines = run(*shlex.split(COMMANDS[name])).out.splitlines()
    lines = [line for line in lines if not line.startswith("and ")]  # how many are not shown
    # Reasons are sentences of the document itself; names of chips and shapes hold digits, too.
    said = " ".join(lines).split("why")[0]
    said = re.sub(r"\b(?:[A-Za-z]+\d[\w.:]*|\d+x\d[\dx]*)", "", said)
    found = document(COMMANDS[name])
    known = spelled(found)
    for date in set(re.findall(r"\b\d{4}-\d\d\b", said)):
        assert date in json.dumps(found)
        said = said.replace(date, "")
    missing = [n for n in re.findall(r"\d[\d,]*(?:\.\d+)?", said) if n.rstrip(",") not in known]
    assert not missing


def test_a_plan_is_the_plan_of_the_api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = json.loads(run(*shlex.split(f"{PLAN} -o plan.json --json")).out)
    assert found["schema"] == "shardwise.plan/2"
    assert found == json.loads(Path("plan.json").read_text())
    job = sw.Train(batch=16, seq=2048, tokens=1e12)
    assert sw.load("plan.json") == sw.plan(sw.model("llama3-8b"), sw.hardware("v5e:4x4"), job)


def test_what_is_given_of_a_strategy_reaches_the_plan() -> None:
    command = "plan llama3-8b h100:16 --train --batch 64x2048 "
    fixed = document(command + "--fix pipe=4,schedule=interleaved,virtual=2,zero=1")["strategy"]
    assert (fixed["mesh"]["pipe"], fixed["schedule"], fixed["virtual"]) == (4, "interleaved", 2)
    assert fixed["zero"] == 1
    limited = document(command + "--max pipe=1,tensor=1")["strategy"]
    assert (limited["mesh"]["pipe"], limited["mesh"]["tensor"]) == (1, 1)
    words = "--overlap tp_comm --offload optimizer --reduce int8 --remat mlp --optimizer muon"
    told = document(f"{command} {words}")["strategy"]
    assert "tp_comm" in told["overlap"]
    assert told["offload"] == ["optimizer"]
    assert told["precision"]["reduce"] == "int8"
    assert told["remat"] == "mlp"


def test_peak_rates_are_asked_for() -> None:
    command = "plan llama3-8b h100:16 --train --batch 64x2048"
    real, peak = (document(f"{command}{word}")["estimate"] for word in ("", " --peak"))
    assert peak["rates"]["name"] == "peak"
    assert real["rates"]["name"] == "h100"
    assert peak["step_s"]["expected"] < real["step_s"]["expected"]


def test_the_published_mesh_of_llama_3_405b() -> None:
    """Tensor 8, pipe 16, data 128 on 16,384 H100, 16M tokens a step. arXiv 2407.21783, table 4."""
    mesh = "tensor=8,pipe=16,data=128"
    command = "plan llama3.1-405b h100:16384 --train --batch 2048x8192 --mesh "
    found = document(command + mesh)
    sizes = {role: n for role, n in found["strategy"]["mesh"].items() if n > 1}
    assert sizes == {"tensor": 8, "pipe": 16, "data": 128}
    memory = found["estimate"]["memory_bytes_per_chip"]
    assert memory["total"] + memory["margin"] <= memory["capacity"]
    given = document(f"{command}{mesh},zero=1,schedule=interleaved,virtual=4")["strategy"]
    assert (given["zero"], given["schedule"], given["virtual"]) == (1, "interleaved", 4)


def test_only_a_file_that_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "saved" not in run(*PLAN.split()).out
    assert list(tmp_path.iterdir()) == []
    assert run(*PLAN.split(), "-o", "a.json").out.endswith("saved a.json\n")


def test_a_split_that_does_not_fit_is_shown_and_refused() -> None:
    command = "plan llama3-70b v5p:4x4x4 --train --batch 1024x4096 --mesh fsdp=64 --remat none"
    done = run(*command.split())
    assert done.code == 3
    assert done.out.startswith("Does not fit: ×")
    assert run(*command.split(), "--json").code == 3


def test_top_lists_plans() -> None:
    found = document(COMMANDS["plan_fix_top"])["plans"]
    assert len(found) == 3
    assert [plan["strategy"]["mesh"]["tensor"] for plan in found] == [2, 2, 2]
    expected = [plan["estimate"]["step_s"]["expected"] for plan in found]
    assert expected == sorted(expected)


def test_fit_counts_in_two_ways() -> None:
    for need in document(COMMANDS["fit_serve"])["needs"]:
        documented, planned = need["rooms"]
        assert (documented["capacity"], planned["capacity"]) == ("documented", "planned")
        left = documented["hbm_bytes"] - need["held"]["weights"]
        assert documented["sequences"] == left // need["kv_bytes_per_sequence"]
        assert 0 < planned["sequences"] < documented["sequences"]
        assert need["held_bytes"] == sum(need["held"].values())


def test_fit_of_a_size_is_the_fit_of_the_smallest() -> None:
    smallest = document("fit llama3-70b v5p --train")
    (need,) = smallest["needs"]
    sized = document(f"fit llama3-70b {need['system']} --train")
    assert smallest["needs"] == sized["needs"]
    found = sw.fit(sw.model("llama3-70b"), sw.chip("v5p"), sw.Train(batch=1, seq=8192))
    assert found.batch == need["batch"]
    assert found.left_bytes == need["rooms"][1]["left_bytes"]


def test_sequences_of_the_books_table() -> None:
    # Applied inference chapter: one formula gives the same count in all three rows.
    needs = document(COMMANDS["fit_serve"])["needs"]
    assert [need["system"] for need in needs] == ["v5e:4x4", "v5e:2x4", "v5e:2x2"]
    assert {need["rooms"][0]["sequences"] for need in needs} == {42}
