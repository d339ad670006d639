"""Rows of `bench/asplanned.py`: what they cover, how they are told, and which are run again."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.benches import imported

CHIPS = {"v5e", "v5p", "v6e", "7x", "h100", "b200"}


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, ModuleType]:
    """`kept` and `asplanned` as they are imported when the latter is run."""
    kept, _, asplanned = imported(monkeypatch, "kept", "check", "asplanned")
    return kept, asplanned


def row(name: str, roofline: float, lower: float, **fields: Any) -> dict[str, Any]:
    """A row with numbers, as it is kept."""
    collectives = [
        {"role": "fsdp", "planned_bytes": 1e9, "compiled_bytes": 1.5e9, "asynchronous": 0.5},
        {"role": "data", "planned_bytes": 1e9, "compiled_bytes": 0.5e9, "asynchronous": 1.0},
    ]
    return {
        "name": name,
        "model": "m,n_layers=2",
        "hardware": "v5e:4x4*2",
        "strategy": "fsdp 16",
        "verdict": "proved",
        "planned": {
            "peak_bytes": 100.0,
            "flops": 1e12,
            "hbm_bytes": 1e9,
            "step_s": {"lower": lower, "expected": 2 * lower},
        },
        "compiled": {
            "peak_bytes": 90.0,
            "flops": 1e12,
            "hbm_bytes": 2e9,
            "step_s": {"roofline": roofline, "cycles": None},
        },
        "collectives": collectives,
        **fields,
    }


def test_rows_cover_chips_groups_and_both_kinds_of_programs(
    scripts: tuple[ModuleType, ModuleType],
) -> None:
    _, asplanned = scripts
    rows = asplanned.ROWS
    assert len({one.name for one in rows}) == len(rows) >= 40
    assert {one.hardware.split(":")[0] for one in rows} == CHIPS
    assert {one.step for one in rows} == {"train", "decode", "prefill"}
    schedules = {one.fixed.get("schedule") for one in rows} - {None}
    assert schedules == {"gpipe", "1f1b", "interleaved", "zb-h1", "zb-v"}
    kinds = {one.fixed.get("context_kind") for one in rows} - {None}
    assert kinds == {"gather", "ring", "ulysses"}


def test_times_are_those_of_the_program_over_the_lower_bound(
    scripts: tuple[ModuleType, ModuleType],
) -> None:
    _, asplanned = scripts
    rows = [row("dense a", 1.2, 1.0), row("dense b", 3.0, 2.0), row("context c", 4.0, 1.0)]
    figures = asplanned.figures_of(rows)
    assert figures["roofline"] == (1.5, 4.0)
    assert figures["peak"] == (pytest.approx(0.1), pytest.approx(0.1))
    assert "cycles" not in figures
    assert asplanned.asynchronous(rows[0]) == pytest.approx(1.25 / 2)
    assert asplanned.unplanned(rows[0]) == pytest.approx(0.25)
    refused = {"name": "chosen d", "verdict": "refused", "note": "why\nmore"}
    text = asplanned.table([*rows, refused])
    assert "| all | 3 | 1.50 | 4.00 |  |  |  |  | 10.0% | 10.0% | 2.00 | 2.00 |" in text
    assert "| dense | 2 | 1.35 | 1.50 |" in text
    assert text.endswith("- chosen d: refused: why")


def test_cycles_are_compared_with_the_expected_time_too(
    scripts: tuple[ModuleType, ModuleType],
) -> None:
    _, asplanned = scripts
    one = row("dense a", 1.2, 1.0)
    one["compiled"]["step_s"]["cycles"] = 3.0
    figures = asplanned.figures_of([one])
    assert figures["cycles"] == (3.0, 3.0)
    assert figures["expected"] == (1.5, 1.5)
    assert "| 1.20 | 3.00 | 1.50 |" in asplanned.table([one])


def test_a_row_of_the_same_source_is_not_run_again(
    scripts: tuple[ModuleType, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, _ = scripts
    page = tmp_path / "page.md"
    page.write_text("<!-- rows of x -->\n<!-- end of x -->\n")
    script = str(tmp_path / "x.py")
    ran: list[str] = []

    def run(_: str, name: str) -> dict[str, Any]:
        ran.append(name)
        return {"name": name, "verdict": "proved", "source": "new"}

    monkeypatch.setattr(kept, "run", run)
    old = {name: {"name": name, "source": source} for name, source in (("a", "new"), ("b", "old"))}
    (tmp_path / "x.json").write_text(json.dumps(old))
    kept.refresh(script, ["a", "b", "c"], [], lambda rows: "", "x", page, source="new")
    assert ran == ["b", "c"]
