"""What one compile is asked to do, as the document that its process reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from shardwise.check.compiling.targets import Target

# The files of a job's folder.
JOB, STAGE, RESULT, LOG = "job.json", "stage", "result.json", "log"

# In this order; a stage that the cache makes needless is left out.
STAGES = ("starting", "building", "lowering", "compiling", "explaining", "writing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One program for one target.

    Args:
        builder: `module:function`, called in the compiling process as
            `function(devices, **arguments)`; returns a `Program`. `devices` is a NumPy array of
            JAX devices in the shape of `target.grid`.
        arguments: what the builder is called with; JSON values.
        target: what to compile for.
        options: options of XLA's compiler, before those of the program.
        explain: whether a program that does not fit is compiled once more as if it did, so that
            one can see what fills the memory; a search for what fits leaves it out.
        cache: the folder of the cache, empty for none.
    """

    builder: str
    target: Target
    arguments: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    explain: bool = True
    cache: str = ""


def write_job(folder: Path, job: Job) -> None:
    """Put the job where its process finds it."""
    (folder / JOB).write_bytes(msgspec.json.encode(job))


def read_job(folder: Path) -> Job:
    """The job in a folder."""
    return msgspec.json.decode((folder / JOB).read_bytes(), type=Job)
