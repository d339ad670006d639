"""`shardwise demo`: the whole loop on this machine, from measuring it to a chat with a model."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from shardwise.cli import options
from shardwise.cli.answer import Answer
from shardwise.cli.demo.run import StageResult, prepare, run_stages
from shardwise.cli.demo.stages import STAGES
from shardwise.cli.options import output, workload
from shardwise.cli.progress import progress
from shardwise.cli.streams import write_answer
from shardwise.errors import BadInput, nearest
from shardwise.report.demo_page import PAGE
from shardwise.report.style import Block, quiet, render, strong

FAILED = 4  # exit code: a stage failed


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """The stages of a demo, and the page that shows them."""

    page: str
    stages: tuple[StageResult, ...]


def run(
    skip: Annotated[
        str,
        workload("--skip STAGE,...", f"leave out: {', '.join(stage.name for stage in STAGES)}"),
    ] = "",
    out: Annotated[str, output("--out DIR", "folder of its files")] = "demo",
    json: options.Json = False,
) -> Answer:
    """Plan for a TPU pod, prove a plan with the TPU compiler, measure this machine, plan for it,
    train, profile, compare, serve and chat: every stage of this package, in some minutes."""
    skipped = _stage_names(skip)
    folder = Path(out)
    prepare(folder)
    results = []
    stages = run_stages(folder, skipped)
    for stage in STAGES:
        with progress(stage.title, quiet=json):
            result = next(stages)
        results.append(result)
        if not json:
            write_answer(render(_lines(result), sys.stdout))
    demo = DemoResult(page=str(folder / PAGE), stages=tuple(results))
    failed = any(result.status in ("failed", "blocked") for result in results)
    return Answer(
        document=lambda: demo,
        blocks=[quiet(f"all of it: {demo.page}")],
        as_json=json,
        exit_code=FAILED if failed else 0,
    )


def _stage_names(text: str) -> frozenset[str]:
    """The names of --skip.

    Raises:
        BadInput: no stage has such a name.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    known = [stage.name for stage in STAGES]
    for name in names:
        if name not in known:
            raise BadInput(f'--skip: unknown stage "{name}". {nearest(name, known)}')
    return frozenset(names)


def _lines(result: StageResult) -> Iterator[Block]:
    if result.status == "skipped":
        return
    yield strong(f"{result.title} ({result.seconds:.0f} s)")
    yield result.answer if result.status == "done" else f"{result.status}: {result.answer}"
    if result.look:
        yield quiet(result.look)
    yield ""
