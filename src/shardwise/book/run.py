"""Solve cases with this package, and compare the answers with the expected ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from shardwise.book.case import Case, cases, find
from shardwise.book.compare import compare
from shardwise.book.own_numbers import changes, with_numbers
from shardwise.book.registry import solutions
from shardwise.errors import BadInput, ShardwiseError, UnknownName


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """This package's answer to one case, compared with the expected one.

    Args:
        formula: the computation in the book's notation.
        answer: this package's answer, with the structure of `case.expected`.
        agrees: whether every value is within `case.tolerance_rel`.
        worst_rel: the largest relative difference of a number.
        where: path of the first value that disagrees; "" if all agree.
        library: False if the answer is plain arithmetic on the given numbers.
    """

    case: Case
    formula: str
    answer: Any
    agrees: bool
    worst_rel: float
    where: str = ""
    library: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class BookResult:
    """The results of many cases; `skipped` has (id, reason) of each case without a solution."""

    results: tuple[Result, ...]
    skipped: tuple[tuple[str, str], ...] = ()

    @property
    def n(self) -> int:
        """Number of cases, including skipped ones."""
        return len(self.results) + len(self.skipped)

    @property
    def passed(self) -> int:
        return sum(result.agrees for result in self.results)

    @property
    def failed(self) -> tuple[str, ...]:
        """Ids of the cases that disagree."""
        return tuple(result.case.id for result in self.results if not result.agrees)


def run(case_id: str) -> Result:
    """Solve one case.

    >>> run("sharding-q2-1").agrees
    True

    Raises:
        UnknownName: no case has this id, or the case has no solution.
    """
    case = find(case_id)
    if case_id not in solutions():
        raise UnknownName("case with a solution", case_id, solutions())
    solution = solutions()[case_id]
    answer = solution.compute(case.given)
    agreement = compare(answer, case.expected, case.tolerance_rel)
    return Result(
        case=case,
        formula=solution.formula,
        answer=answer,
        agrees=agreement.agrees,
        worst_rel=agreement.worst_rel,
        where=agreement.where,
        library=solution.uses_library,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnResult:
    """The answer to a case with other numbers than the book's.

    Args:
        given: all given numbers, as they were used.
        changed: those that are not the book's.
        answer: with the structure of `case.expected`, which is the answer to the book's numbers.
    """

    case: Case
    formula: str
    given: Mapping[str, Any]
    changed: Mapping[str, Any]
    answer: Any


def run_with(case_id: str, numbers: str) -> OwnResult:
    """Solve one case with other numbers, such as `B=2048,chip=v5p`.

    >>> run_with("sharding-q2-1", "chip=v5p").changed["ici_bidi_bytes_per_s"]
    180000000000.0

    Raises:
        BadInput: the numbers are not of the case, or it has no answer with them.
    """
    case = find(case_id)
    if case_id not in solutions():
        raise UnknownName("case with a solution", case_id, solutions())
    solution = solutions()[case_id]
    values = with_numbers(case, numbers)
    try:
        answer = solution.compute(values)
    except ShardwiseError:
        raise
    except (ArithmeticError, LookupError, TypeError, ValueError, StopIteration) as error:
        reason = str(error) or type(error).__name__
        raise BadInput(f"{case_id} has no answer with {numbers}: {reason}.") from None
    return OwnResult(
        case=case,
        formula=solution.formula,
        given=values,
        changed=changes(case, values),
        answer=answer,
    )


def run_all(selection: Iterable[Case] | None = None) -> BookResult:
    """Solve the cases in `selection`, by default all."""
    results = []
    skipped = []
    for case in cases() if selection is None else selection:
        if case.id in solutions():
            results.append(run(case.id))
        else:
            skipped.append((case.id, "no solution"))
    return BookResult(results=tuple(results), skipped=tuple(skipped))


def plain() -> tuple[str, ...]:
    """Ids of the cases whose solution is plain arithmetic on the given numbers."""
    return tuple(name for name, solution in solutions().items() if not solution.uses_library)


def document(result: BookResult) -> dict[str, Any]:
    """The JSON document of `shardwise book --all`."""
    return {
        "n": result.n,
        "passed": result.passed,
        "failed": list(result.failed),
        "skipped": [{"id": case_id, "reason": reason} for case_id, reason in result.skipped],
    }
