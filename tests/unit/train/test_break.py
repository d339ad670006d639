"""A run that is killed, or asked to end, loses nothing that was saved."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import shardwise as sw
from shardwise.train import sources
from shardwise.train.tokenize import tokenize
from shardwise.train.tokenizer import Bytes
from tests.conftest import ROOT
from tests.host import host

EVERY = 4
PATIENCE_S = 300


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With `plan.json` for one device of this CPU, and tokens in `data`."""
    made = tmp_path_factory.mktemp("run")
    model = sw.ModelConfig.dense(
        n_layers=1, d_model=16, d_ff=32, n_heads=2, n_kv_heads=1, vocab=264
    )
    job = sw.Train(batch=2, seq=16, weights="fp32", compute="fp32", gradients="fp32")
    sw.plan(model, host(made, 1), job).save(str(made / "plan.json"))
    (made / "text.txt").write_text("some text that is learned\n" * 400)
    found = sources.find([str(made / "text.txt")], "*", "text")
    tokenize(found, Bytes(), str(made / "data"))
    return made


def started(folder: Path, *more: str) -> subprocess.Popen[str]:
    """`shardwise train` of more steps than anybody waits for."""
    flags = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    words = ["plan.json", "--data", "data", "--steps", "1000000", "--schedule", "constant"]
    saving = ["--checkpoint", "saved", "--checkpoint-every", str(EVERY), *more]
    return subprocess.Popen(
        [sys.executable, "-m", "shardwise", "train", *words, *saving],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "XLA_FLAGS": flags},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def lines(folder: Path) -> list[dict[str, float]]:
    """The steps in `metrics.jsonl` that are whole lines."""
    path = folder / "saved" / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.split("\n")[:-1]]


def until(process: subprocess.Popen[str], folder: Path, n: int) -> None:
    """Wait for so many lines."""
    end = time.monotonic() + PATIENCE_S
    while len(lines(folder)) < n:
        assert process.poll() is None, process.stderr and process.stderr.read()
        assert time.monotonic() < end
        time.sleep(0.02)


def test_killed_then_asked_to_end(folder: Path) -> None:
    process = started(folder)
    until(process, folder, 3 * EVERY)
    process.kill()
    process.communicate()
    first = {line["step"]: line["loss"] for line in lines(folder)}
    n = len(lines(folder))

    process = started(folder, "--resume")
    until(process, folder, n + EVERY + 1)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, said
    again = {line["step"]: line["loss"] for line in lines(folder)[n:]}
    begin, end = min(again), max(again)
    assert "goes on after step" in said
    assert max(first) - begin <= EVERY * 2, "no more than what was being saved is done again"
    assert (begin - 1) % EVERY == 0
    both = first.keys() & again.keys()
    assert [again[s] for s in both] == [first[s] for s in both]
    assert (folder / "saved" / str(end) / "commit_success.txt").exists()


def test_ctrl_c_saves_too(folder: Path) -> None:
    n = len(lines(folder))
    process = started(folder, "--resume")
    until(process, folder, n + 2)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    done = int(max(line["step"] for line in lines(folder)))
    assert (folder / "saved" / str(done)).is_dir()
