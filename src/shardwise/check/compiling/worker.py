"""The process of one compile: `python -m shardwise.check.compiling.worker FOLDER`.

It reads `job.json`, says in `stage` what it is doing, and leaves `result.json`. The environment was
set by `compile.py`, before JAX is imported here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from shardwise.check.compiling.aot import compile_program, devices_of
from shardwise.check.compiling.failures import classify
from shardwise.check.compiling.job import RESULT, STAGE, Job, read_job
from shardwise.check.compiling.result import Compiled, Failure, Refused, encode
from shardwise.check.user.entry_point import find
from shardwise.errors import ShardwiseError
from shardwise.runtime.program import Program


def main(folder: Path) -> None:
    """Do the job in `folder`. Every failure that has words becomes the result."""
    stage = "starting"

    def say(now: str) -> None:
        nonlocal stage
        stage = now
        _replaced(folder / STAGE, now.encode())

    result: Compiled | Failure | Refused
    try:
        result = _compile(read_job(folder), say)
    except ShardwiseError as error:
        result = Refused(error=type(error).__name__, problems=error.problems)
    except Exception as error:
        result = classify(error, stage)
    _replaced(folder / RESULT, encode(result))


def _replaced(path: Path, content: bytes) -> None:
    """Write a file that another process reads: it sees the old one or the new, never a part."""
    part = path.with_suffix(".part")
    part.write_bytes(content)
    part.replace(path)


def _compile(job: Job, say: Callable[[str], None]) -> Compiled | Failure:
    devices = devices_of(job.target)
    say("building")

    def build() -> Program:
        program: Program = find(job.builder)(devices, **job.arguments)
        return replace(program, options={**program.options, **job.options})

    return compile_program(job.target, build, explain=job.explain, folder=job.cache, say=say)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
