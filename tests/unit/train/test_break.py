"""A run that is killed, or asked to end, loses nothing that was saved."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

import shardwise as sw
from tests.host import host
from tests.unit.train.command import PATIENCE_S, ended, lines, started, tokens, until_lines

pytestmark = pytest.mark.oracle

EVERY = 4
METRICS = "saved/metrics.jsonl"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With `plan.json` for one device of this CPU, and tokens in `data`."""
    made = tmp_path_factory.mktemp("run")
    model = sw.ModelConfig.dense(
        n_layers=1, d_model=16, d_ff=32, n_heads=2, n_kv_heads=1, vocab=264
    )
    job = sw.Train(batch=2, seq=16, weights="fp32", compute="fp32", gradients="fp32")
    sw.plan(model, host(made, 1), job).save(str(made / "plan.json"))
    tokens(made)
    return made


def run(folder: Path, *more: str) -> subprocess.Popen[str]:
    """A run of more steps than anybody waits for."""
    saving = ("--checkpoint", "saved", "--checkpoint-every", str(EVERY))
    return started(folder, "plan.json", "--steps", "1000000", *saving, *more)


def test_killed_then_asked_to_end(folder: Path) -> None:
    process = run(folder)
    until_lines(process, folder / METRICS, 3 * EVERY)
    said = ended(run(folder, "--resume"), code=2).replace("\n  ", " ")
    assert f"saved is in use by another run: process {process.pid} on " in said
    process.kill()
    process.communicate()
    first = {line["step"]: line["loss"] for line in lines(folder / METRICS)}
    n = len(lines(folder / METRICS))

    process = run(folder, "--resume")
    until_lines(process, folder / METRICS, n + EVERY + 1)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, said
    again = {line["step"]: line["loss"] for line in lines(folder / METRICS)[n:]}
    begin, end = min(again), max(again)
    assert "resumes after step" in said
    assert max(first) - begin <= EVERY * 2, "no more than what was being saved is done again"
    assert (begin - 1) % EVERY == 0
    both = first.keys() & again.keys()
    assert [again[s] for s in both] == [first[s] for s in both]
    assert (folder / "saved" / str(end) / "commit_success.txt").exists()


def test_ctrl_c_saves_too(folder: Path) -> None:
    n = len(lines(folder / METRICS))
    process = run(folder, "--resume")
    until_lines(process, folder / METRICS, n + 2)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    done = int(max(line["step"] for line in lines(folder / METRICS)))
    assert (folder / "saved" / str(done)).is_dir()
