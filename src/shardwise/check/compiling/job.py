"""A compile job, as the document that the compiling process reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from shardwise.check.compiling.targets import Target

# The files of a job's folder.
JOB, STAGE, RESULT, LOG = "job.json", "stage", "result.json", "log"

# In this order; a stage is skipped where the cache has its result.
STAGES = ("starting", "building", "lowering", "compiling", "explaining", "writing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One program for one target.

    Args:
        builder: `module:function`, called in the compiling process as
            `function(devices, **arguments)`; returns a `Program`. `devices` is a NumPy array of
            JAX devices in the shape of `target.grid`.
        target: the machine to compile for.
        arguments: keyword arguments of the builder; JSON values.
        options: options of XLA's compiler, which override those of the program.
        explain: whether a program that does not fit is compiled again without the limit, to show
            what fills the memory.
        cache: the folder of the cache, "" for none.
    """

    builder: str
    target: Target
    arguments: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    explain: bool = True
    cache: str = ""


def write_job(folder: Path, job: Job) -> None:
    """Write a job to its folder."""
    (folder / JOB).write_bytes(msgspec.json.encode(job))


def read_job(folder: Path) -> Job:
    """Read the job of a folder."""
    return msgspec.json.decode((folder / JOB).read_bytes(), type=Job)
