"""The cases as values, read from `cases.json`."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwise.errors import UnknownName

_FILE = Path(__file__).parent / "cases.json"

# Chapters in the order of the book, with its numbers; the companions have none.
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
        edition: of the book: `feb2025`, `later`, `both`; `n/a` for the companions.
        question: the problem in one sentence.
        given: its numbers, in base units.
        ask: what is to be answered, in the order of `expected`.
        expected: the answer without rounding on the way; numbers, texts, truth values, nested.
        unit: of the answer.
        tolerance_rel: largest relative difference of each number, 0 for exact.
        book_says: the figures as printed.
        correct: False where the printed figure is not the answer; `why` explains.
        why: the erratum, or a remark.
        depends_on_assumption: what the answer takes for granted, empty if nothing.
        continues: id of the case whose setting the question goes on from.
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
    """The documents that the cases are drawn from, by short name."""
    return dict(_read()["sources"])


def find(case_id: str) -> Case:
    """A case by its id.

    Raises:
        UnknownName: no such case, with the close ones.
    """
    for case in cases():
        if case.id == case_id:
            return case
    raise UnknownName("case", case_id, [c.id for c in cases()], "List: shardwise book")


def select(words: str) -> tuple[Case, ...]:
    """The case of this id, or those of a chapter by name or number (`5`, `training`).

    Raises:
        UnknownName: neither a case nor a chapter.
    """
    word = words.strip().lower()
    for chapter, number in CHAPTERS.items():
        if word in (chapter, str(number)):
            return tuple(c for c in cases() if c.chapter == chapter)
    found = tuple(c for c in cases() if c.id.lower() == word)
    if not found:
        known = [*CHAPTERS, *(c.id for c in cases())]
        raise UnknownName("case or chapter", words, known, "List: shardwise book")
    return found
