"""Rows of `bench/check.py` and `bench/timeline.py`: the smallest ones, and how rows are told."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import pytest

from tests.benches import BENCH, imported
from tests.unit.check.compilers import needs


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, ModuleType, ModuleType]:
    """`kept`, `check`, `timeline` as they are imported when one of them is run."""
    kept, check, timeline = imported(monkeypatch, "kept", "check", "timeline")
    return kept, check, timeline


@needs("tpu")
@pytest.mark.oracle
def test_a_tiny_row_is_proved(scripts: tuple[ModuleType, ...]) -> None:
    kept, check, _ = scripts
    found = kept.run(str(BENCH / "check.py"), "tiny v5e")
    assert (found["verdict"], found["compiler"], found["fits"]) == ("proved", "tpu", True), found
    assert found["deviations"] == []
    assert found["compiled"]["flops"] == pytest.approx(found["planned"]["flops"], rel=0.01)
    line = check.table([found]).splitlines()[-1]
    assert line.count("|") == 9
    assert line.endswith("| proved |")


def test_what_is_refused_is_told_as_such(scripts: tuple[ModuleType, ...]) -> None:
    _, check, _ = scripts
    rows = [{"name": "a", "model": "m", "hardware": "h", "verdict": "refused", "note": "why\nmore"}]
    assert check.table(rows).splitlines()[-1] == "- refused: m on h, a: why"


def test_names_of_rows_are_unique(
    scripts: tuple[ModuleType, ...],
) -> None:
    _, check, timeline = scripts
    assert len({row.name for row in check.ROWS}) == len(check.ROWS) >= 20
    assert len({run.name for run in timeline.stated()}) >= 12
    assert all(run.measured_s > 1 for run in timeline.stated())


def test_rows_are_kept_and_written_into_the_page(
    scripts: tuple[ModuleType, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, _, _ = scripts
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- rows of x -->\nold\n<!-- end of x -->\nafter\n")
    monkeypatch.setattr(kept, "PAGE", page)
    monkeypatch.setattr(kept, "run", lambda _, name: {"name": name, "verdict": "proved"})
    script = str(tmp_path / "x.py")
    table = lambda rows: ", ".join(row["name"] for row in rows)
    kept.refresh(script, ["a", "b", "c"], ["c"], table, "x")
    kept.refresh(script, ["a", "b", "c"], ["a"], table, "x")
    assert list(json.loads((tmp_path / "x.json").read_text())) == ["a", "c"]
    text = page.read_text()
    assert "old" not in text
    assert text.startswith("before\n<!-- rows of x -->\n\na, c\n\n<!-- end of x -->\nafter")


def test_a_published_run_beside_its_program(scripts: tuple[ModuleType, ...]) -> None:
    _, _, timeline = scripts
    one = {
        "name": "maxtext-a",
        "hardware": "v5e:16x16*2",
        "mesh": "fsdp 256",
        "remat": "full",
        "measured_s": 10.0,
        "verdict": "proved",
        "compiled": {"step_s": {"cycles": 12.0, "roofline": 9.0}},
    }
    other = {"name": "b", "verdict": "not comparable", "note": "why"}
    text = timeline.table([one, other])
    assert "| a | v5e:16x16\\*2 | fsdp 256 | full | 10.00 | 12.00 (+20%) | 9.00 (-10%) |" in text
    assert "By cycles: +20% to +20% of the published step over 1 runs" in text
    assert text.endswith("- not comparable: b: why")
