"""`shardwise book [ID | CHAPTER] [--all]`: worked problems of the book, solved by the library."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from shardwise.book.case import CHAPTERS, Case, cases, select
from shardwise.book.run import BookResult, OwnResult, Result, document, run_all, run_with
from shardwise.book.run import run as solve
from shardwise.cli import options
from shardwise.cli.answer import Answer
from shardwise.cli.options import argument, output
from shardwise.errors import BadInput, CheckFailed
from shardwise.report.book import training_blocks
from shardwise.report.style import Block, labelled, quiet, strong, table


def run(
    word: Annotated[str, argument("[ID | CHAPTER]", "sharding-q2-1, sharding, 3")] = "",
    every: Annotated[bool, output("--all", "solve every case; exit 4 if one fails")] = False,
    numbers: Annotated[
        str, output("--set NAME=VALUE,...", "solve the case with numbers of one's own: chip=v6e")
    ] = "",
    json: options.Json = False,
) -> Answer:
    """The worked problems of "How to Scale Your Model", solved by this package: as the book gives
    them, or with --set on other chips and sizes."""
    if numbers:
        return _own(word, numbers, json)
    if every and word:
        raise BadInput(f"--all solves every case; leave {word} out, or --all.")
    if every:
        return _all(json)
    if not word:
        return Answer(document=lambda: _document(cases()), blocks=_chapters(), as_json=json)
    problems = select(word)
    if len(problems) > 1:
        return Answer(document=lambda: _document(problems), blocks=_chapter(problems), as_json=json)
    result = solve(problems[0].id)
    return Answer(
        document=lambda: result,
        blocks=_solution(result),
        as_json=json,
        exit_code=_exit_code(result.agrees),
    )


def _own(word: str, numbers: str, as_json: bool) -> Answer:
    """A case with other numbers than the book's."""
    problems = select(word) if word else ()
    if len(problems) != 1:
        raise BadInput(f"--set {numbers} is for one case. Name it: shardwise book ID --set ...")
    result = run_with(problems[0].id, numbers)
    return Answer(document=lambda: result, blocks=_own_solution(result), as_json=as_json)


def _own_solution(result: OwnResult) -> Iterator[Block]:
    case = result.case
    yield strong(f"{shown(result.answer)}  [{case.unit}]")
    given = []
    for name, value in result.given.items():
        text = f"{name} = {shown(value)}"
        if name in result.changed:
            text += f" (book: {shown(case.given[name])})"
        given.append(text)
    yield labelled(
        [
            ("case", case.id),
            ("question", case.question),
            ("given", "; ".join(given)),
            ("asked", case.ask),
            ("formula", result.formula),
            ("book's", f"{shown(case.expected)}  with the numbers of the book"),
        ]
    )


def _all(as_json: bool) -> Answer:
    results = run_all()
    return Answer(
        document=lambda: document(results),
        blocks=_summary(results),
        as_json=as_json,
        exit_code=_exit_code(not results.failed),
    )


def _exit_code(agrees: bool) -> int:
    if agrees:
        return 0
    return CheckFailed.exit_code


def _document(problems: Sequence[Case]) -> list[dict[str, Any]]:
    """The questions, without their solutions."""
    rows = []
    for problem in problems:
        rows.append(
            {
                "id": problem.id,
                "chapter": problem.chapter,
                "question": problem.question,
                "correct": problem.correct,
            }
        )
    return rows


def _chapters() -> Iterator[Block]:
    yield strong(f"{len(cases())} worked problems and figures, by chapter.")
    rows = []
    for chapter, number in CHAPTERS.items():
        problems = [problem for problem in cases() if problem.chapter == chapter]
        errata = sum(not problem.correct for problem in problems)
        first_id = next((problem.id for problem in problems), "")
        rows.append([f"{number or ''}", chapter, f"{len(problems)}", f"{errata or ''}", first_id])
    yield table([">", "!chapter", ">cases", ">errata", "first"], rows)
    yield quiet("type  shardwise book CHAPTER  ·  shardwise book ID  ·  shardwise book --all")


def _chapter(problems: Sequence[Case]) -> Iterator[Block]:
    """A chapter: what it says, for the one on training, and its cases."""
    chapter = problems[0].chapter
    if chapter == "training":
        yield from training_blocks([problem.id for problem in problems])
        return
    yield strong(f"{chapter}: {len(problems)} cases.")
    yield table(["!case", "question"], [[problem.id, problem.question] for problem in problems])


def _solution(result: Result) -> Iterator[Block]:
    case = result.case
    verdict = f"DISAGREES at {result.where}"
    if result.agrees:
        verdict = "agrees"
    if not case.correct:
        verdict += " with the corrected figure"
    yield strong(f"{case.id}: {verdict}.")
    yield labelled((heading, text) for heading, text in _details(result) if text)


def _details(result: Result) -> Iterator[tuple[str, str]]:
    """Labels and texts of a solution; some texts are empty."""
    case = result.case
    number = CHAPTERS[case.chapter]
    chapter = case.chapter
    if number:
        chapter = f"chapter {number}, {chapter}"
    yield "from", f"{chapter} ({case.edition})"
    yield "question", case.question
    yield "given", "; ".join(f"{name} = {shown(value)}" for name, value in case.given.items())
    yield "asked", case.ask
    yield "formula", result.formula
    yield "answer", f"{shown(result.answer)}  [{case.unit}]"
    yield "expected", f"{shown(case.expected)}  (within {case.tolerance_rel:.2%})"
    yield "book", case.book_says
    yield ("remark" if case.correct else "erratum"), case.why or ""
    yield "assumes", case.depends_on_assumption or ""
    if case.continues:
        yield "continues", f"from {case.continues}"
    if not result.library:
        yield "note", "plain arithmetic on the given numbers"


def _summary(results: BookResult) -> Iterator[Block]:
    yield strong(
        f"{results.passed} of {results.n} cases agree; {len(results.failed)} do not, "
        f"{len(results.skipped)} skipped."
    )
    rows = []
    for chapter in CHAPTERS:
        solved = [result for result in results.results if result.case.chapter == chapter]
        if solved:
            agreeing = sum(result.agrees for result in solved)
            largest_error = max(result.worst_rel for result in solved)
            rows.append([chapter, f"{len(solved)}", f"{agreeing}", f"{largest_error:.2%}"])
    yield table(["chapter", ">cases", ">agree", ">worst difference"], rows)
    for result in results.results:
        if not result.agrees:
            yield f"✗ {result.case.id} at {result.where}: {shown(result.answer)}"
    for case_id, reason in results.skipped:
        yield f"skipped {case_id}: {reason}"


def shown(value: Any) -> str:
    """The text of an answer, which may be nested; fractional numbers have four digits."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {shown(element)}" for name, element in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_item, value))
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, int | float):
        return str(value)
    if isinstance(value, float) and not value.is_integer():
        return f"{value:.4g}"
    if abs(value) < 1e9:
        return f"{value:,.0f}"
    return f"{value:.6g}"


def _item(value: Any) -> str:
    """The text of an element of a list; a list in it is in parentheses."""
    if isinstance(value, list | tuple):
        return f"({shown(value)})"
    return shown(value)
