"""A side of `bench/serve.py` as the process that measures sees it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

Found = dict[str, Any]

WORKER = Path(__file__).with_name("serve_worker.py")


class Side:
    """A worker that waits until it is its turn.

    Args:
        name: of the side; its first word names the worker's module.
        dtype: of the weights, as the side calls it.
        model: folder of the published weights.
        folder: where the side may write files.
    """

    def __init__(self, name: str, dtype: str, model: Path, folder: str) -> None:
        kind = name.split()[0]
        self.kind = kind
        self.dtype = dtype
        python = os.environ.get("LLAMA_PYTHON", sys.executable)
        python = python if kind == "llama.cpp" else sys.executable
        command = [python, str(WORKER), kind, dtype, str(model), folder]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.said: Found = self._read()

    def _read(self) -> Any:
        line = self.process.stdout.readline() if self.process.stdout else ""
        if not line:
            raise SystemExit("a side ended before its turn")
        return json.loads(line)

    def ask(self, method: str, **arguments: Any) -> Found:
        """Call a method of `serve_worker.Side`."""
        if self.process.stdin:
            self.process.stdin.write(json.dumps([method, arguments]) + "\n")
            self.process.stdin.flush()
        return dict(self._read())

    def close(self) -> None:
        """Let it end."""
        self.process.communicate()
