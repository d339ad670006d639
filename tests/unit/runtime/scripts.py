"""Programs of these tests that need eight devices, and so a process of their own.

`python -m tests.unit.runtime.scripts SCRIPT WORDS` runs one by hand. Flags in `XLA_FLAGS` are added
to those of the tests: `--xla_cpu_max_isa=AVX2` has the rounding of another processor.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.xla import LEAST_COMPILE_TIME, NO_SOURCE_LINES, completed

FLAGS = f"--xla_force_host_platform_device_count=8 {LEAST_COMPILE_TIME}"


def answer(root: Path, script: str, *words: str) -> Any:
    """The JSON document that `python -m SCRIPT WORDS` prints last.

    Args:
        script: a module here, or one with its packages.
    """
    module = script if "." in script else f"tests.unit.runtime.{script}"
    flags = f"{os.environ.get('XLA_FLAGS', '')} {FLAGS}".strip()
    done = completed(
        [sys.executable, "-m", module, *words],
        cwd=root,
        env={**os.environ, **NO_SOURCE_LINES, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def rows(names: Iterable[str], quick: Collection[str]) -> list[Any]:
    """Parameters `name`: `quick` ones for every run of the tests, the others for `make oracle`."""
    assert {*quick} <= {*names}
    return [pytest.param(name, marks=() if name in quick else pytest.mark.oracle) for name in names]


def selected(request: pytest.FixtureRequest) -> list[str]:
    """Values of the parameter `name` of this module that are going to be tested."""
    items = [item for item in request.session.items if item.path == request.path]
    parameters = [getattr(item, "callspec", None) for item in items]
    return [
        *dict.fromkeys(one.params["name"] for one in parameters if one and "name" in one.params)
    ]


if __name__ == "__main__":
    print(json.dumps(answer(ROOT, *sys.argv[1:]), indent=1))
