"""Solve cases by the library and say whether the answers agree with the book's, recomputed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from shardwise.book.case import Case, cases, find
from shardwise.book.compare import compare
from shardwise.book.registry import solutions
from shardwise.errors import UnknownName

__all__ = ["Result", "RunAll", "cases", "document", "find", "plain", "run", "run_all"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One case solved.

    Args:
        case: the problem.
        formula: how it was computed, in the book's notation.
        answer: what the library gives, in the structure of `case.expected`.
        agrees: every part is within `case.tolerance_rel`.
        worst_rel: the largest relative difference.
        where: the first part that disagrees, empty when all agree.
        library: False where it is plain arithmetic on the given numbers.
    """

    case: Case
    formula: str
    answer: Any
    agrees: bool
    worst_rel: float
    where: str = ""
    library: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAll:
    """Many cases solved. `skipped` holds (id, reason) of those without a computation."""

    results: tuple[Result, ...]
    skipped: tuple[tuple[str, str], ...] = ()

    @property
    def n(self) -> int:
        """Cases, skipped ones included."""
        return len(self.results) + len(self.skipped)

    @property
    def passed(self) -> int:
        return sum(r.agrees for r in self.results)

    @property
    def failed(self) -> tuple[str, ...]:
        """Ids of the cases that disagree."""
        return tuple(r.case.id for r in self.results if not r.agrees)

    @property
    def plain(self) -> tuple[str, ...]:
        """Ids of the cases that are plain arithmetic on the given numbers."""
        return tuple(r.case.id for r in self.results if not r.library)


def run(case_id: str) -> Result:
    """Solve one case.

    >>> run("sharding-q2-1").agrees
    True

    Raises:
        UnknownName: no such case, or none that has a computation.
    """
    case = find(case_id)
    known = solutions()
    if case_id not in known:
        raise UnknownName("case with a computation", case_id, known)
    solution = known[case_id]
    answer = solution.compute(case.given)
    found = compare(answer, case.expected, case.tolerance_rel)
    return Result(
        case=case,
        formula=solution.formula,
        answer=answer,
        agrees=found.agrees,
        worst_rel=found.worst_rel,
        where=found.where,
        library=solution.library,
    )


def run_all(wanted: Iterable[Case] | None = None) -> RunAll:
    """Solve every case, or those given."""
    known = solutions()
    chosen = tuple(cases() if wanted is None else wanted)
    return RunAll(
        results=tuple(run(c.id) for c in chosen if c.id in known),
        skipped=tuple((c.id, "no computation") for c in chosen if c.id not in known),
    )


def plain() -> tuple[str, ...]:
    """Ids of the cases that are plain arithmetic on the given numbers, without the library."""
    return tuple(case_id for case_id, s in solutions().items() if not s.library)


def document(result: RunAll) -> dict[str, Any]:
    """The JSON of `book --all`: n, passed, failed ids, skipped with reasons."""
    return {
        "n": result.n,
        "passed": result.passed,
        "failed": list(result.failed),
        "skipped": [{"id": case_id, "reason": reason} for case_id, reason in result.skipped],
    }
