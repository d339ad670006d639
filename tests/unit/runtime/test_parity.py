"""A step on eight devices is the step on one: its losses, and the weights after it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

LOSS, WEIGHT = 1e-5, 1e-4  # in fp32

NAMES = (
    "data",
    "zero 1",
    "zero 2, tensor",
    "fsdp",
    "tensor",
    "tensor, sequence",
    "data, fsdp, tensor",
    "one sequence a chip",
    "fsdp, tensor, accumulated, full remat",
    "fsdp, tensor, norms again",
)


@pytest.fixture(scope="module")
def runs(root: Path) -> Any:
    done = subprocess.run(
        [sys.executable, "-m", "tests.unit.runtime.parity"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_every_layout_ran(runs: Any) -> None:
    assert set(runs) == {"one", *NAMES}


def test_one_device_learns_something(runs: Any) -> None:
    losses = runs["one"]["losses"]
    assert losses[0] > 5.0
    assert losses[0] != losses[1] != losses[2]


@pytest.mark.parametrize("name", NAMES)
def test_losses_and_weights_are_those_of_one_device(runs: Any, name: str) -> None:
    assert runs[name]["losses"] == pytest.approx(runs["one"]["losses"], abs=LOSS)
    assert runs[name]["apart"] < WEIGHT
