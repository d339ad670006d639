"""Programs of these tests that need eight devices, and so a process of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any


def answer(root: Path, script: str, *words: str) -> Any:
    """The JSON document that `python -m tests.unit.runtime.SCRIPT WORDS` prints last."""
    done = subprocess.run(
        [sys.executable, "-m", f"tests.unit.runtime.{script}", *words],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
