"""`shardwise train` as a user starts it, in processes that tests may kill; and scripts of tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shardwise.runtime.tokenizer import ByteTokenizer
from shardwise.train import sources
from shardwise.train.tokenize import tokenize
from tests.conftest import ROOT
from tests.xla import NO_SOURCE_LINES, completed

PATIENCE_S = 300


def environment(*folders: Path) -> dict[str, str]:
    """Variables of a process that finds modules in these folders."""
    return {
        **os.environ,
        **NO_SOURCE_LINES,
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join(map(str, folders)),
    }


def printed(script: str, folder: Path, *words: str) -> Any:
    """The JSON document that `python -m tests.unit.train.SCRIPT FOLDER WORDS` prints last."""
    words_of_python = ("-X", "faulthandler", "-W", "error")  # a crash in XLA prints its stacks
    command = [sys.executable, *words_of_python, "-m", f"tests.unit.train.{script}"]
    done = completed(
        [*command, str(folder), *words],
        fills=folder,
        cwd=ROOT,
        env=environment(ROOT / "src", ROOT),
        timeout=600,
    )
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr[-6000:]}"
    return json.loads(done.stdout.splitlines()[-1])


def tokens(folder: Path) -> None:
    """Tokens in `data`."""
    text = folder / "text.txt"
    text.write_text("".join(f"line {i} of text that is learned\n" for i in range(600)))
    tokenize(sources.find_sources([str(text)], "*", "text"), ByteTokenizer(), str(folder / "data"))


def started(folder: Path, plan: str, *words: str) -> subprocess.Popen[str]:
    """A run of a plan on the tokens of a folder, at one learning rate."""
    fixed = ["--data", "data", "--schedule", "constant"]
    return subprocess.Popen(
        [sys.executable, "-m", "shardwise", "train", plan, *fixed, *words],
        cwd=folder,
        env=environment(ROOT / "src"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def lines(path: Path) -> list[dict[str, float]]:
    """The steps in a `metrics.jsonl` that are whole lines."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.split("\n")[:-1]]


def until(process: subprocess.Popen[str], reached: Callable[[], bool]) -> None:
    """Wait for what a run does."""
    end = time.monotonic() + PATIENCE_S
    while not reached():
        assert process.poll() is None, process.stderr and process.stderr.read()
        assert time.monotonic() < end
        time.sleep(0.02)


def until_lines(process: subprocess.Popen[str], path: Path, n: int) -> None:
    """Wait for so many lines."""
    until(process, lambda: len(lines(path)) >= n)


def ended(process: subprocess.Popen[str], code: int = 0, within_s: float = PATIENCE_S) -> str:
    """What a run that has to end so said."""
    _, said = process.communicate(timeout=within_s)
    assert process.returncode == code, said
    return said
