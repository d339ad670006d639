"""Run the package in a fresh interpreter, from the sources or from a copy that a test spoils."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT

# Levels 0 to 7: everything that a plan is made of, and the plan.
CORE = (
    "errors",
    "units",
    "arrays",
    "hardware",
    "models",
    "workload",
    "strategy",
    "ops",
    "formulas",
    "estimate",
    "search",
    "simulate",
    "plan",
)


def run(*command: str, src: Path = ROOT / "src", cwd: Path | None = None) -> tuple[int, str]:
    """Run `python ARGS...` with `src` first on the path: exit code, and all that it printed."""
    done = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "PYTHONPATH": str(src), "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.returncode, done.stdout


def copy_of_package(folder: Path) -> Path:
    """A copy of the sources in `folder` that a test may spoil; returns what goes on the path."""
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src" / "shardwise", folder / "src" / "shardwise", ignore=ignored)
    return folder / "src"


def spoil(src: Path, module: str, line: str) -> None:
    """Put `line` at the end of a module of the copy at `src`."""
    path = src / "shardwise" / module
    path.write_text(path.read_text() + f"\n{line}\n")
