"""The demo's stages: skipped, blocked and failed ones leave the others, and the page shows all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from shardwise.cli.demo.commands import CommandFailed, Screen, typed
from shardwise.cli.demo.run import prepare, run_stages
from shardwise.cli.demo.stages import STAGES, Stage
from shardwise.errors import BadInput
from shardwise.report.demo_page import PAGE
from tests.unit.cli.test_main import run


def make(folder: Path) -> Iterator[Screen]:
    (folder / "made").write_text("x")
    yield Screen(command="make", output="Made: one\nfile.\nsize  1 B\n")


def break_down(folder: Path) -> Iterator[Screen]:
    yield Screen(command="first", output="<b>fine</b>\n")
    yield typed(folder, "models", "none-of-these")


def use(folder: Path) -> Iterator[Screen]:
    yield Screen(command="use", output=f"title\nloss  {(folder / 'made').read_text()}\n")


TOYS = (
    Stage(name="make", title="make a file", screens=make, writes=("made",)),
    Stage(name="break", title="break", screens=break_down),
    Stage(name="use", title="use the file", screens=use, needs=("made",), answer="loss"),
    Stage(name="never", title="never", screens=make, needs=("absent",)),
)


def test_what_fails_leaves_the_others(tmp_path: Path) -> None:
    prepare(tmp_path)
    results = {result.name: result for result in run_stages(tmp_path, (), TOYS)}
    assert {name: result.status for name, result in results.items()} == {
        "make": "done",
        "break": "failed",
        "use": "done",
        "never": "blocked",
    }
    assert results["make"].answer == "Made: one file."
    assert results["use"].answer == "loss x"
    assert 'unknown model "none-of-these"' in results["break"].answer
    assert results["never"].answer == "needs absent, which no stage has made"
    assert (tmp_path / "use.txt").read_text() == "$ use\ntitle\nloss  x\n"
    page = (tmp_path / PAGE).read_text()
    assert "&lt;b&gt;fine&lt;/b&gt;" in page  # of the command before the failed one
    assert page.count("<h2") == len(TOYS)


def test_a_skipped_stage_leaves_its_files(tmp_path: Path) -> None:
    prepare(tmp_path)
    assert [result.status for result in run_stages(tmp_path, (), TOYS[:1])] == ["done"]
    (tmp_path / "made").write_text("y")
    prepare(tmp_path)  # again: the folder is a demo's
    statuses = [result.status for result in run_stages(tmp_path, ("make", "break"), TOYS)]
    assert statuses == ["skipped", "skipped", "done", "blocked"]
    assert "loss  y" in (tmp_path / "use.txt").read_text()


def test_a_folder_of_others_is_left(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(BadInput, match="no demo has made it: name another folder by --out DIR"):
        prepare(tmp_path)
    with pytest.raises(BadInput, match="no demo has made it"):
        prepare(tmp_path / "thesis.tex")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match="cannot be written"):
        prepare(tmp_path / "file" / "demo")


def test_the_first_stage(tmp_path: Path) -> None:
    others = ",".join(stage.name for stage in STAGES if stage.name != "pod")
    done = run("demo", "--out", str(tmp_path), "--skip", others)
    assert done.code == 0, done.err
    assert "8,960" in done.out
    assert "LLaMA-3-70B" in (tmp_path / PAGE).read_text()
    assert '<a href="pod.html">' in (tmp_path / PAGE).read_text()
    assert "default-src 'none'" in (tmp_path / "pod.html").read_text()
    assert (tmp_path / "pod.json").exists()


def test_a_failed_command_says_what_it_printed(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="shardwise hw v99"):
        typed(tmp_path, "hw", "v99")


@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_a_running_stage_fits_a_terminal(stage: Stage) -> None:
    assert len(f"{stage.title}, 100 s ...") <= 80
