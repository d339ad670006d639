"""Frozen pages: one file each, of a plan, a comparison and a run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import shardwise as sw
from shardwise.train.metrics import StepRecord
from shardwise.ui.frozen import page_of
from shardwise.units import show_gib
from tests.golden.terminal import run

PLAN = "plan llama3.2-1b v5e:2x2 --train --batch 8x512 -o"
MOST_BYTES = 1_000_000
BARS = ["Time by group", "Memory of a chip"]
STEP = dict.fromkeys(StepRecord.__slots__, 0.1) | {"steps": 3, "bad": False, "memory_bytes": 9}
STEP |= {"step_s": 0.1, "tokens_per_s": 8 * 512 / 0.1}


def frozen(*words: str) -> tuple[str, dict[str, Any]]:
    """The page that `shardwise report` writes, and the data in it."""
    said = run("report", *words, "-o", "out.html")
    assert said.code == 0, said.err
    page = Path("out.html").read_text(encoding="utf-8")
    data = re.search(r'<script id="frozen" type="application/json">(.*?)</script>', page, re.S)
    assert data
    return page, json.loads(data[1])


@pytest.fixture(autouse=True)
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(*PLAN.split(), "plan.json").code == 0


def test_a_plan_with_the_curves_of_its_sliders() -> None:
    page, data = frozen("plan.json")
    assert len(page.encode()) < MOST_BYTES
    sliders = {slider["name"]: slider["stops"] for slider in data["frame"]["sliders"]}
    assert {name: [p["stop"] for p in points] for name, points in data["curves"].items()} == sliders
    links = re.findall(r'(?:src|href)="([^"]*)"', page.partition("<script")[0])
    assert [link for link in links if not link.startswith("data:")] == []
    assert "default-src 'none'" in page


def test_a_comparison_and_a_run() -> None:
    lines = [{**STEP, "step": n, "loss": 4.0 - n} for n in range(1, 4)]
    Path("metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    _, data = frozen(".")
    assert [record["step"] for record in data["run"]] == [1, 2, 3]
    assert data["frame"]["question"]["model"] == "llama3.2-1b"
    said = run("compare", "plan.json", "metrics.jsonl", "--json")
    Path("compare.json").write_text(said.out)
    assert said.code == 0, said.err
    _, data = frozen("compare.json")
    assert [chart["title"] for chart in data["comparison"]["bars"]] == BARS
    assert data["frame"] is None


def test_a_comparison_of_two_plans_names_both_and_has_their_memory() -> None:
    Path("other").mkdir()
    assert run(*PLAN.split(), "other/plan.json", "--fix", "remat=full").code == 0
    said = run("compare", "plan.json", "other/plan.json", "--json")
    Path("compare.json").write_text(said.out)
    _, data = frozen("compare.json")
    view = data["comparison"]
    paths = ("plan.json", "other/plan.json")
    plans = [sw.load(path) for path in paths]
    assert view["names"] == [f"A: plan.json: {plans[0]}", f"B: other/plan.json: {plans[1]}"]
    assert [chart["title"] for chart in view["bars"]] == BARS
    totals = view["bars"][1]["rows"][-1]
    assert totals["values"] == [plan.memory.total for plan in plans]
    assert totals["texts"] == [show_gib(plan.memory.total) for plan in plans]
    shown = [row for table in view["tables"] for row in table["rows"]]
    assert ["remat", *(plan.strategy.remat for plan in plans)] in shown
    assert "memory" in [row[0] for row in shown]


def test_what_text_says_cannot_end_the_data() -> None:
    text = "</script><script>alert(1)</script>"
    page = page_of({"comparison": {"headline": text}})
    assert text not in page
    data = re.search(r'<script id="frozen" type="application/json">(.*?)</script>', page, re.S)
    assert data
    assert json.loads(data[1])["comparison"]["headline"] == text


@pytest.mark.parametrize(
    ("content", "message"),
    [("{}", "BAD"), ("[1]", "BAD"), ("hello", "is not JSON"), ('{"rows": []}', "BAD")],
)
def test_what_is_nothing_to_report(content: str, message: str) -> None:
    Path("BAD.json").write_text(content)
    said = run("report", "BAD.json")
    assert said.code == 2
    assert message in said.err
    assert not Path("report.html").exists()


def test_a_folder_without_records() -> None:
    Path("empty").mkdir()
    assert "has no metrics.jsonl" in run("report", "empty").err
    Path("empty/metrics.jsonl").write_text("{}\nnothing\n")
    assert "has no record of a step" in run("report", "empty").err
