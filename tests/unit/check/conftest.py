"""What the runtime refuses is refused before anything compiles: without a process of its own."""

from __future__ import annotations

from typing import NoReturn

import numpy as np
import pytest

from shardwise.check import serving, training
from shardwise.check.compiling.job import Job
from shardwise.check.user.entry_point import load_attribute


@pytest.fixture
def builds_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks call the builder of a program in this process, which has to refuse the plan."""
    for module in (training, serving):
        monkeypatch.setattr(module, "compile_job", _refused)


def _refused(job: Job, **_: object) -> NoReturn:
    """In the place of `compile_job`: a plan is refused before a builder looks at its devices."""
    load_attribute(job.builder)(np.empty(0), **job.arguments)
    raise AssertionError(f"{job.builder} refuses nothing")
