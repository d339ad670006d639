"""Worked problems, read from `cases.json`."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwise.errors import UnknownName

_FILE = Path(__file__).parent / "cases.json"

# Chapters and their numbers in the book; the companion texts have no number.
CHAPTERS = {
    "roofline": 1,
    "tpus": 2,
    "sharding": 3,
    "transformers": 4,
    "training": 5,
    "applied-training": 6,
    "inference": 7,
    "applied-inference": 8,
    "profiling": 9,
    "jax-stuff": 10,
    "gpus": 12,
    "ultra-scale-playbook": None,
    "esti-paper": None,
    "kipply-inference-arithmetic": None,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One worked problem.

    Args:
        id: `sharding-q2-1`.
        chapter: one of `CHAPTERS`.
        kind: `worked-problem`, `inline-number`, `takeaway` or `table`.
        edition: edition of the book: `feb2025`, `later`, `both`; `n/a` for the companion texts.
        question: the problem in one sentence.
        given: the numbers of the problem, in base units.
        ask: the quantities that the question asks for, in the order of `expected`.
        expected: the answer, computed without intermediate rounding: a number, string or bool, or
            nested lists and dicts of them.
        unit: unit of the answer.
        tolerance_rel: largest relative difference allowed for each number; 0 for an exact answer.
        book_says: the answer as printed.
        correct: False if the printed answer is wrong; `why` explains.
        why: explanation of the erratum, or a remark.
        depends_on_assumption: what the answer assumes; "" if nothing.
        continues: id of the case whose setting the question continues; "" if none.
    """

    id: str
    chapter: str
    kind: str
    edition: str
    question: str
    given: Mapping[str, Any]
    ask: str
    expected: Any
    unit: str
    tolerance_rel: float
    book_says: str
    correct: bool
    why: str = ""
    depends_on_assumption: str = ""
    continues: str = ""


@functools.cache
def _read() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(_FILE.read_text(encoding="utf-8"))
    return document


@functools.cache
def cases() -> tuple[Case, ...]:
    """Every case, in the order of the book.

    >>> cases()[0].id
    'roofline-h100-1e12'
    """
    return tuple(Case(**row) for row in _read()["cases"])


def sources() -> dict[str, str]:
    """Short name -> title of each document from which cases come."""
    return dict(_read()["sources"])


def find(case_id: str) -> Case:
    """Find a case by its id.

    Raises:
        UnknownName: no case has this id; the message lists similar ids.
    """
    for case in cases():
        if case.id == case_id:
            return case
    raise UnknownName("case", case_id, [case.id for case in cases()], "List: shardwise book")


def select(words: str) -> tuple[Case, ...]:
    """Select a case by id, or all cases of a chapter by its name or number (`5`, `training`).

    Raises:
        UnknownName: `words` is neither a case nor a chapter.
    """
    word = words.strip().lower()
    for chapter, number in CHAPTERS.items():
        if word in (chapter, str(number)):
            return tuple(case for case in cases() if case.chapter == chapter)
    for case in cases():
        if case.id.lower() == word:
            return (case,)
    valid = [*CHAPTERS, *(case.id for case in cases())]
    raise UnknownName("case or chapter", words, valid, "List: shardwise book")
