"""Main program of the compiling process: `python -m shardwise.check.compiling.worker FOLDER`.

It reads `FOLDER/job.json`, writes its current stage to `FOLDER/stage` and its result to
`FOLDER/result.json`. `process.py` has set the environment, which must precede the import of JAX.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from shardwise.check.compiling.aot import compile_program, target_devices
from shardwise.check.compiling.failures import classify
from shardwise.check.compiling.job import RESULT, STAGE, Job, read_job
from shardwise.check.compiling.result import Compiled, Failure, Refused, encode
from shardwise.check.user.entry_point import load_attribute
from shardwise.errors import ShardwiseError
from shardwise.runtime.program import Program


def main(folder: Path) -> None:
    """Run the job in `folder` and write its result; an exception becomes a failure."""
    stage = "starting"

    def set_stage(name: str) -> None:
        nonlocal stage
        stage = name
        _write_atomically(folder / STAGE, name.encode())

    result: Compiled | Failure | Refused
    try:
        result = _compile(read_job(folder), set_stage)
    except ShardwiseError as error:
        result = Refused(error=type(error).__name__, problems=error.problems)
    except Exception as error:
        result = classify(error, stage)
    _write_atomically(folder / RESULT, encode(result))


def _write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees the old content or the new, never a part of either."""
    part = path.with_suffix(".part")
    part.write_bytes(content)
    part.replace(path)


def _compile(job: Job, set_stage: Callable[[str], None]) -> Compiled | Failure:
    devices = target_devices(job.target)
    set_stage("building")

    def build() -> Program:
        program: Program = load_attribute(job.builder)(devices, **job.arguments)
        return replace(program, options={**program.options, **job.options})

    return compile_program(
        job.target, build, explain=job.explain, cache_path=job.cache_path, set_stage=set_stage
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
