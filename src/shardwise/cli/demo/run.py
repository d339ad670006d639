"""Run the stages one after the other: what fails or is skipped leaves the others."""

from __future__ import annotations

import shutil
import textwrap
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from shardwise.cli.demo.commands import Screen
from shardwise.cli.demo.stages import STAGES, Stage
from shardwise.errors import BadInput, ShardwiseError
from shardwise.report.demo_page import PAGE, Section, page
from shardwise.ui.frozen import report

ANSWER_CHARACTERS = 230


@dataclass(frozen=True, slots=True, kw_only=True)
class StageResult:
    """How a stage ended.

    Args:
        status: done, failed, skipped, or blocked: a file of an earlier stage is missing.
        answer: its answer in a line, or why it has none.
        look: the file with what it printed, or with what it wrote; empty if there is none.
    """

    name: str
    title: str
    status: str
    seconds: float
    answer: str
    look: str = ""


def prepare(folder: Path) -> None:
    """Make the folder of the demo.

    Raises:
        BadInput: it exists, and is not one that an earlier demo has made; or it cannot be written.
    """
    is_ours = (folder / PAGE).exists()
    is_empty = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    if not (is_ours or is_empty):
        raise BadInput(
            f"{folder} exists, and no demo has made it: name another folder by --out DIR."
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / PAGE).touch()
    except OSError as error:
        raise BadInput(
            f"{folder} cannot be written ({error.strerror}): name another folder by --out DIR."
        ) from None


def run_stages(
    folder: Path, skipped: Collection[str], stages: tuple[Stage, ...] = STAGES
) -> Iterator[StageResult]:
    """Run the stages in a folder; after each one the page there shows it.

    Args:
        skipped: names of stages; files of theirs from an earlier demo are used.
    """
    sections: list[Section] = []
    for stage in stages:
        screens: list[Screen] = []
        result = _result(stage, folder, skipped, screens)
        if screens or result.status != "skipped":
            (folder / f"{stage.name}.txt").write_text(_text(screens, result), encoding="utf-8")
        sections.append(
            Section(
                title=stage.title,
                status=result.status,
                answer=result.answer,
                seconds=result.seconds,
                screens=[(screen.command, screen.output) for screen in screens],
                charts=[name for name in stage.charts if (folder / name).exists()],
            )
        )
        (folder / PAGE).write_text(page(sections), encoding="utf-8")
        yield result


def _result(
    stage: Stage, folder: Path, skipped: Collection[str], screens: list[Screen]
) -> StageResult:
    """Run a stage, appending what its commands printed to `screens`."""
    start_s = time.monotonic()
    status = "done"
    look = f"{folder / stage.name}.txt"
    missing = [name for name in stage.needs if not (folder / name).exists()]
    if stage.name in skipped:
        status, answer, look = "skipped", "skipped", ""
    elif missing:
        status, answer, look = "blocked", f"needs {missing[0]}, which no stage has made", ""
    else:
        _remove(folder, (*stage.writes, *stage.charts))
        try:
            screens.extend(stage.screens(folder))
            for name, source in stage.charts.items():
                report(str(folder / source), folder / name)
            answer = _answer(screens[-1].output, stage.answer)
        except ShardwiseError as error:
            status, answer = "failed", str(error)
    return StageResult(
        name=stage.name,
        title=stage.title,
        status=status,
        seconds=time.monotonic() - start_s,
        answer=answer,
        look=look,
    )


def _remove(folder: Path, names: tuple[str, ...]) -> None:
    for name in names:
        path = folder / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _answer(output: str, begin: str) -> str:
    """The line that begins so; without one, the sentences before the first table."""
    for line in output.splitlines():
        if begin and line.startswith(begin):
            return " ".join(line.split())
    sentences = []
    for line in output.splitlines():
        if not line or "  " in line:
            break
        sentences.append(line)
    return textwrap.shorten(" ".join(sentences), ANSWER_CHARACTERS, placeholder=" ...")


def _text(screens: list[Screen], result: StageResult) -> str:
    """All that the commands of a stage printed."""
    parts = [f"$ {screen.command}\n{screen.output}" for screen in screens]
    if result.status != "done":
        parts.append(f"{result.status}: {result.answer}\n")
    return "\n".join(parts)
