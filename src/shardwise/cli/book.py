"""`shardwise book [ID | CHAPTER] [--all]`: the cases, and whether the library agrees."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer

from shardwise.book.case import CHAPTERS, Case, cases, select
from shardwise.book.run import BookResult, Result, document, run_all
from shardwise.book.run import run as solve
from shardwise.cli.answer import Answer
from shardwise.cli.command import Json
from shardwise.errors import BadInput, CheckFailed
from shardwise.report.style import Block, labelled, quiet, strong, table


def run(
    word: Annotated[
        str, typer.Argument(metavar="[ID | CHAPTER]", help="sharding-q2-1, sharding, 3")
    ] = "",
    every: Annotated[bool, typer.Option("--all", help="solve every case; exit 4 if one fails")] = (
        False
    ),
    json: Json = False,
) -> Answer:
    """The worked problems of "How to Scale Your Model", solved by this package."""
    if every and word:
        raise BadInput(f"--all solves every case; leave {word} out, or --all.")
    if every:
        return _all(json)
    if not word:
        return Answer(document=lambda: _listed(cases()), blocks=_chapters(), as_json=json)
    chosen = select(word)
    if len(chosen) > 1:
        return Answer(document=lambda: _listed(chosen), blocks=_list(chosen), as_json=json)
    result = solve(chosen[0].id)
    code = 0 if result.agrees else CheckFailed.exit_code
    return Answer(document=lambda: result, blocks=_case(result), as_json=json, exit_code=code)


def _all(as_json: bool) -> Answer:
    done = run_all()
    code = CheckFailed.exit_code if done.failed else 0
    return Answer(
        document=lambda: document(done), blocks=_summary(done), as_json=as_json, exit_code=code
    )


def _listed(chosen: Sequence[Case]) -> list[dict[str, Any]]:
    return [
        {"id": c.id, "chapter": c.chapter, "question": c.question, "correct": c.correct}
        for c in chosen
    ]


def _chapters() -> Iterator[Block]:
    yield strong(f"{len(cases())} worked problems and figures, by chapter.")
    rows = []
    for chapter, number in CHAPTERS.items():
        found = [c for c in cases() if c.chapter == chapter]
        errata = sum(not c.correct for c in found)
        rows.append(
            [
                f"{number or ''}",
                chapter,
                f"{len(found)}",
                f"{errata or ''}",
                found[0].id if found else "",
            ]
        )
    yield table([">", "!chapter", ">cases", ">errata", "the first"], rows)
    yield quiet("type  shardwise book CHAPTER  ·  shardwise book ID  ·  shardwise book --all")


def _list(chosen: Sequence[Case]) -> Iterator[Block]:
    yield strong(f"{chosen[0].chapter}: {len(chosen)} cases.")
    yield table(["!case", "question"], [[c.id, c.question] for c in chosen])


def _case(result: Result) -> Iterator[Block]:
    case = result.case
    verdict = "agrees" if result.agrees else f"DISAGREES at {result.where}"
    number = CHAPTERS[case.chapter]
    yield strong(f"{case.id}: {verdict}{' with the corrected figure' * (not case.correct)}.")
    rows = [
        ("from", f"{f'chapter {number}, ' if number else ''}{case.chapter} ({case.edition})"),
        ("question", case.question),
        ("given", "; ".join(f"{key} = {shown(value)}" for key, value in case.given.items())),
        ("asked", case.ask),
        ("formula", result.formula),
        ("answer", f"{shown(result.answer)}  [{case.unit}]"),
        ("expected", f"{shown(case.expected)}  (within {case.tolerance_rel:.2%})"),
        ("book", case.book_says),
    ]
    if case.why:
        rows.append(("erratum" if not case.correct else "remark", case.why))
    if case.depends_on_assumption:
        rows.append(("assumes", case.depends_on_assumption))
    if case.continues:
        rows.append(("goes on", f"from {case.continues}"))
    if not result.library:
        rows.append(("note", "plain arithmetic on the given numbers"))
    yield labelled((label, text) for label, text in rows if text)


def _summary(done: BookResult) -> Iterator[Block]:
    yield strong(
        f"{done.passed} of {done.n} cases agree; {len(done.failed)} do not, "
        f"{len(done.skipped)} skipped."
    )
    rows = []
    for chapter in CHAPTERS:
        found = [r for r in done.results if r.case.chapter == chapter]
        if found:
            agree = sum(r.agrees for r in found)
            worst = max(r.worst_rel for r in found)
            rows.append([chapter, f"{len(found)}", f"{agree}", f"{worst:.2%}"])
    yield table(["chapter", ">cases", ">agree", ">worst difference"], rows)
    failed = [r for r in done.results if not r.agrees]
    yield from (f"✗ {r.case.id} at {r.where}: {shown(r.answer)}" for r in failed)
    yield from (f"skipped {case_id}: {reason}" for case_id, reason in done.skipped)


def shown(value: Any) -> str:
    """A nested answer for people: whole numbers as they are, others to four digits."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {shown(v)}" for key, v in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(
            f"({shown(v)})" if isinstance(v, list | tuple) else shown(v) for v in value
        )
    if isinstance(value, bool) or not isinstance(value, int | float):
        return {True: "yes", False: "no"}.get(value, str(value)) if value is not None else "none"
    if isinstance(value, int) or value.is_integer():
        return f"{value:,.0f}" if abs(value) < 1e9 else f"{value:.6g}"
    return f"{value:.4g}"
