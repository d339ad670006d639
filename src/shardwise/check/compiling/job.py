"""A compile job, and what the compiling process writes about it while it runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import msgspec

from shardwise.check.compiling.result import Compiled, Failure, Refused, decode, encode
from shardwise.check.compiling.targets import Target

# Stages of a job, in this order; "compiling" and "explaining" are skipped on a cache hit.
STAGES = ("starting", "building", "lowering", "compiling", "explaining", "writing")
_STAGE_LINES = frozenset(stage.encode() for stage in STAGES)


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
        self_contained: whether the program depends on nothing but this job and this package, so
            that the cache finds it without lowering it. A user's function depends on its modules.
    """

    builder: str
    target: Target
    arguments: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    explain: bool = True
    cache_path: str = ""
    self_contained: bool = False


def write_job(file: BinaryIO, job: Job) -> None:
    """Write a job to a file, and go back to its beginning."""
    file.write(msgspec.json.encode(job))
    file.seek(0)


def read_job(file: BinaryIO) -> Job:
    """Read a job from a file."""
    return msgspec.json.decode(file.read(), type=Job)


class Report:
    """What the compiling process says about its job: a line for each stage and each result.

    The last stage and the last result count. An earlier result is what remains if the process ends
    while it compiles again to explain it. The two processes share the file, so reading does not
    move its offset.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.file = file

    def set_stage(self, stage: str) -> None:
        """Add a stage."""
        self._add(stage.encode())

    def add_result(self, result: Compiled | Failure | Refused) -> None:
        """Add a result."""
        self._add(encode(result))

    def read(self) -> tuple[str, Compiled | Failure | Refused | None]:
        """The last stage, and the last result; None if there is none yet."""
        descriptor = self.file.fileno()
        content = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
        stage = STAGES[0]
        result = None
        for line in content.split(b"\n")[:-1]:
            if line in _STAGE_LINES:
                stage = line.decode()
            else:
                result = line
        return stage, decode(result) if result else None

    def _add(self, line: bytes) -> None:
        self.file.write(line + b"\n")
        self.file.flush()
