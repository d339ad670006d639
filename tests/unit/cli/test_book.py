"""`shardwise book`: its document, errata, and the exit code when a case fails."""

from __future__ import annotations

import dataclasses
import json

import pytest

from shardwise.book.case import cases
from shardwise.book.registry import solutions
from shardwise.cli.verbs.book import shown
from tests.golden.terminal import run

CASE = "sharding-q2-1"


def test_all_as_json() -> None:
    done = run("book", "--all", "--json")
    assert done.code == 0
    n = len(cases())
    assert json.loads(done.out) == {"n": n, "passed": n, "failed": [], "skipped": []}


def test_a_case_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = dataclasses.replace(solutions()[CASE], function=lambda given: -1.0)
    monkeypatch.setitem(solutions(), CASE, wrong)  # type: ignore[arg-type]
    done = run("book", "--all")
    assert done.code == 4
    assert f"✗ {CASE} at the answer: -1" in done.out
    assert json.loads(run("book", "--all", "--json").out)["failed"] == [CASE]
    one = run("book", CASE)
    assert one.code == 4
    assert one.out.startswith(f"{CASE}: DISAGREES at the answer.")


def test_an_erratum_is_told() -> None:
    case = next(c for c in cases() if not c.correct)
    done = run("book", case.id)
    assert done.code == 0
    assert done.out.startswith(f"{case.id}: agrees with the corrected figure.")
    assert "\nerratum" in done.out
    assert "\nbook" in done.out


@pytest.mark.parametrize("word", ["sharding", "3"])
def test_a_chapter_by_name_and_number(word: str) -> None:
    listed = json.loads(run("book", word, "--json").out)
    assert {row["chapter"] for row in listed} == {"sharding"}
    assert CASE in {row["id"] for row in listed}


def test_the_chapter_on_training_is_for_a_reader() -> None:
    """Each way to split has what it is and when it pays; its numbers are those of the cases."""
    done = run("book", "5")
    assert done.code == 0
    assert max(map(len, done.out.splitlines())) <= 80
    text = " ".join(done.out.split())
    for way in ("data parallelism", "FSDP, ZeRO-3", "tensor parallelism", "pipeline"):
        assert way in done.out.splitlines()
    chapter = [case for case in cases() if case.chapter == "training"]
    for case in chapter:
        assert text.count(f"{case.id},") + text.count(f"{case.id} ") >= 1, case.id
    by_id = {case.id: case.expected for case in chapter}
    one_axis, three_axes, _ = by_id["training-dp-threshold"]
    assert f"{one_axis:,} tokens a chip on one axis, {three_axes:,} on three" in text
    assert f"{by_id['training-tp-limit'][0]:.0f}-way" in text


@pytest.mark.parametrize("case", cases(), ids=lambda case: case.id)
def test_every_case_can_be_shown(case: object) -> None:
    done = run("book", case.id)  # type: ignore[attr-defined]
    assert done.code == 0, done.err
    assert max(map(len, done.out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "yes"),
        (None, "none"),
        (1120, "1,120"),
        (15e12, "1.5e+13"),
        (0.0230456, "0.02305"),
        ([1, [2, 3]], "1, (2, 3)"),
        ({"a": 1.0, "b": "x"}, "a 1, b x"),
    ],
)
def test_shown(value: object, text: str) -> None:
    assert shown(value) == text
