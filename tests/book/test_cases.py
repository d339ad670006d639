"""Every worked problem is solved by the library, within the tolerance that the case states."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

import pytest

from shardwise.book import run
from shardwise.book.case import CHAPTERS, Case, cases, find, select, sources
from shardwise.book.registry import Solution, solutions, solves
from shardwise.errors import BadShape, UnknownName

# Answers that no number of the case moves: names and truth values, ratios of the algebra, and the
# tables, whose numbers are the catalog's.
FIXED = {
    "tpus-links-per-chip",
    "sharding-invalid",
    "sharding-four-cases",
    "sharding-collective-costs",
    "sharding-adjoint-pairs",
    "transformers-remat-flops",
    "training-appendix-dwin",
    "training-zero-equal-comm",
    "usp-zero-comm",
    "usp-cheatsheet",
    *(c.id for c in cases() if "-table-" in c.id and c.chapter in ("tpus", "gpus")),
}


@pytest.mark.parametrize("case_id", [c.id for c in cases()])
def test_the_library_gives_the_answer(case_id: str) -> None:
    result = run.run(case_id)
    assert result.agrees, f"{result.where}: {result.answer} against {result.case.expected}"
    assert result.worst_rel <= result.case.tolerance_rel
    assert result.formula


def test_run_all_finds_nothing_wrong() -> None:
    done = run.run_all()
    assert run.document(done) == {"n": 240, "passed": 240, "failed": [], "skipped": []}
    assert tuple(r.case.id for r in done.results if not r.library) == tuple(
        c.id for c in cases() if c.id in run.plain()
    )


def test_every_case_has_a_computation_and_no_other() -> None:
    assert set(solutions()) == {c.id for c in cases()}
    assert len({c.id for c in cases()}) == len(cases())


def test_every_chapter_is_there() -> None:
    assert {c.chapter for c in cases()} == set(CHAPTERS)


def test_plain_arithmetic_is_rare() -> None:
    assert 0 < len(run.plain()) <= 0.1 * len(cases())


def test_the_answer_follows_the_given_numbers() -> None:
    unmoved = {c.id for c in cases() if not _moves(c)}
    assert unmoved == FIXED


def _moves(case: Case) -> bool:
    """Whether doubling some given number changes the answer, or makes the question impossible."""
    solution = solutions()[case.id]
    before = solution.compute(case.given)
    for path in _numbers(dict(case.given)):
        given = copy.deepcopy(dict(case.given))
        _double(given, path)
        try:
            if solution.compute(given) != before:
                return True
        except (KeyError, ValueError, StopIteration, BadShape, UnknownName):
            return True
    return False


def _numbers(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _numbers(inner, (*path, key))
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from _numbers(inner, (*path, i))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path


def _double(value: Any, path: tuple[Any, ...]) -> None:
    for key in path[:-1]:
        value = value[key]
    value[path[-1]] *= 2


def test_a_wrong_computation_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Solution(formula="1 + 1 = 3", function=lambda g: 3.0)
    monkeypatch.setattr(run, "solutions", lambda: {"roofline-v5e-intensity": wrong})
    few = cases()[:4]
    done = run.run_all(few)
    assert done.failed == ("roofline-v5e-intensity",)
    assert (done.n, done.passed) == (4, 0)
    assert run.document(done)["skipped"] == [
        {"id": c.id, "reason": "no solution"} for c in few if c.id not in done.failed
    ]


def test_a_case_is_solved_once() -> None:
    with pytest.raises(ValueError, match="roofline-h100-1e12 has two solutions"):
        solves("roofline-h100-1e12", formula="again")(lambda g: g)


def test_errata_say_why() -> None:
    errata = [c for c in cases() if not c.correct]
    assert len(errata) > 20
    assert all(c.why for c in errata)


def test_cases_name_their_origin() -> None:
    assert all(c.book_says and c.question and c.ask and c.unit for c in cases())
    assert {c.edition for c in cases()} == {"feb2025", "later", "both", "n/a"}
    assert sources()["esti"] == "arXiv 2211.05102"


def test_a_case_that_goes_on_says_from_what() -> None:
    named = [c.continues for c in cases() if c.continues]
    assert named
    assert all(re.fullmatch(r"[a-z0-9-]+", name) for name in named)


def test_select_by_id_chapter_and_number() -> None:
    assert select("sharding-q2-1") == (find("sharding-q2-1"),)
    assert select("3") == select("Sharding")
    assert {c.chapter for c in select("12")} == {"gpus"}


@pytest.mark.parametrize("word", ["", "13", "none", "sharding-q2"])
def test_select_refuses_others(word: str) -> None:
    with pytest.raises(UnknownName, match="unknown case or chapter"):
        select(word)


def test_unknown_cases_are_named() -> None:
    with pytest.raises(UnknownName, match=r'unknown case "sharding-q2".*sharding-q2-1'):
        find("sharding-q2")
    with pytest.raises(UnknownName, match="List: shardwise book"):
        run.run("nothing")


def test_a_case_without_computation_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "solutions", dict)
    with pytest.raises(UnknownName, match="case with a solution"):
        run.run("sharding-q2-1")
