"""A compile job, which is passed to the compiling process as a JSON file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from shardwise.check.compiling.targets import Target

# The files in a job's folder.
JOB, STAGE, RESULT, LOG = "job.json", "stage", "result.json", "log"

# Stages of a job, in this order; "compiling" and "explaining" are skipped on a cache hit.
STAGES = ("starting", "building", "lowering", "compiling", "explaining", "writing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A program to compile for a target.

    Args:
        builder: `module:function`, called in the compiling process as
            `function(devices, **arguments)`. It returns a `Program`. `devices` is a NumPy array of
            JAX devices with shape `target.grid`.
        target: the machine to compile for.
        arguments: keyword arguments of the builder, as JSON values.
        options: options of XLA's compiler; they override those of the program.
        explain: whether to compile a program that does not fit again without the memory limit, to
            show what fills the memory.
        cache_path: the folder of the cache; "" to use none.
    """

    builder: str
    target: Target
    arguments: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    explain: bool = True
    cache_path: str = ""


def write_job(folder: Path, job: Job) -> None:
    """Write a job to a folder."""
    (folder / JOB).write_bytes(msgspec.json.encode(job))


def read_job(folder: Path) -> Job:
    """Read the job in a folder."""
    return msgspec.json.decode((folder / JOB).read_bytes(), type=Job)
