"""Exported files in the parsers of frameworks, each in a process of its own.

The programs in `parsers/` import a framework's Python files, which `make oracle` has unpacked.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

PROGRAMS = Path(__file__).parent / "parsers"
FOLDER = Path(sys.prefix) / "parsers"


def read(framework: str, requests: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """What the parser of `framework` makes of each request; {"error": text} if it refuses it.

    Args:
        requests: name -> request, whose "file" is a path.
    """
    packages = sorted(FOLDER.glob("*"))
    if not packages:
        pytest.skip(f"no frameworks in {FOLDER}: make oracle")
    paths = [*map(str, packages), os.environ.get("PYTHONPATH", "")]
    result = subprocess.run(
        [sys.executable, PROGRAMS / f"read_{framework}.py"],
        input=json.dumps(list(requests.values())),
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    return dict(zip(requests, json.loads(result.stdout.splitlines()[-1]), strict=True))
