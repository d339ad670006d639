"""Two processes over loopback: one is killed, both start again, others go on from what is saved."""

from __future__ import annotations

import shutil
import socket
import subprocess
from pathlib import Path

import pytest

import shardwise as sw
from shardwise.strategy.layout import Layout
from shardwise.strategy.mesh import Mesh
from tests.host import host
from tests.unit.train.command import ended, lines, started, tokens, until, until_lines
from tests.unit.train.drive import JOB, MODEL

STEPS, EVERY, KILLED = 10, 2, 3
LAYOUTS = {
    "two": Layout(mesh=Mesh(fsdp=2), micro_batch=4, zero=3),
    "one": Layout(mesh=Mesh(), micro_batch=8),
    "four": Layout(mesh=Mesh(data=2, tensor=2), micro_batch=4, zero=1),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("processes")
    for name, layout in LAYOUTS.items():
        plan = sw.evaluate(MODEL, host(made, layout.mesh.n_chips), JOB, layout)
        plan.save(str(made / f"{name}.json"))
    tokens(made)
    return made


def both(folder: Path, *words: str) -> list[subprocess.Popen[str]]:
    """The two processes of a run that saves."""
    saving = ("--checkpoint", "saved", "--checkpoint-every", str(EVERY), "--steps", str(STEPS))
    many = meeting()
    return [started(folder, "two.json", *saving, *words, *many, str(i)) for i in range(2)]


def meeting() -> tuple[str, ...]:
    """Words for two processes to find each other on a free port, but for the last number."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        at = f"127.0.0.1:{free.getsockname()[1]}"
    return ("--coordinator", at, "--processes", "2", "--process")


def test_processes_that_were_not_started_alike_are_refused(folder: Path) -> None:
    words = ("two.json", "--steps", "4", *meeting())
    one, other = (started(folder, *words, str(i), "--seed", str(i)) for i in range(2))
    try:
        assert "differ in seed, data: start all with the same" in ended(one, 2)
    finally:
        other.communicate()
    assert other.returncode in (2, 4)  # the first may be gone before it looks


@pytest.mark.oracle
def test_a_killed_process_ends_the_other_and_all_go_on(folder: Path) -> None:
    alone = started(folder, "one.json", "--steps", str(STEPS), "--log", "alone.jsonl")
    first = both(folder)
    until_lines(first[0], folder / "saved" / "metrics.jsonl", KILLED)
    until(first[0], (folder / "saved" / str(EVERY)).exists)  # it is written behind the steps
    first[1].kill()
    said = ended(first[0], 4, within_s=90)
    first[1].communicate()
    assert "another process of this run has ended" in said
    assert "--resume" in said
    n = len(lines(folder / "saved" / "metrics.jsonl"))

    again = both(folder, "--resume")
    assert "resumes after step" in ended(again[0])
    ended(again[1])
    ended(alone)
    expected = {line["step"]: line["loss"] for line in lines(folder / "alone.jsonl")}
    told = lines(folder / "saved" / "metrics.jsonl")
    assert told[n]["step"] <= n + 1, "nothing is left out"
    assert told[-1]["step"] == STEPS
    for line in told:
        assert line["loss"] == pytest.approx(expected[line["step"]], rel=1e-5)

    others = {}
    shutil.rmtree(folder / "saved" / str(STEPS))
    for name in ("one", "four"):
        shutil.copytree(folder / "saved", folder / name)
        more = ("--checkpoint", name, "--resume", "--steps", str(STEPS))
        others[name] = started(folder, f"{name}.json", *more, "--log", f"{name}.jsonl")
    for name, process in others.items():
        assert f"resumes after step {STEPS - EVERY}" in ended(process)
        steps = lines(folder / f"{name}.jsonl")
        assert [line["step"] for line in steps] == [STEPS - 1, STEPS]
        for line in steps:
            assert line["loss"] == pytest.approx(expected[line["step"]], rel=1e-5)
