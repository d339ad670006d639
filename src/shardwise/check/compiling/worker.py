"""Main program of the compiling process: `python -m shardwise.check.compiling.worker PID FD`.

It reads its job from stdin, and writes its stages and its result to the inherited file FD. It ends
when the process PID, which started it, ends. `process.py` has set the environment, which must
precede the import of JAX.
"""

from __future__ import annotations

import gc
import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from shardwise.check.compiling.failures import classify
from shardwise.check.compiling.job import Job, Report, read_job
from shardwise.check.compiling.lifetime import end_with_parent
from shardwise.check.compiling.result import Compiled, Failure, Refused
from shardwise.check.user.entry_point import load_attribute
from shardwise.errors import ShardwiseError

if TYPE_CHECKING:
    from shardwise.runtime.program import Program

# Objects between two collections of garbage. The process ends with its program; with Python's 700,
# it would walk the modules of JAX hundreds of times while it imports them.
COLLECT_AFTER = 200_000


def main(job: Job, report: Report) -> None:
    """Run the job and report its result; an exception becomes a failure."""
    result: Compiled | Failure | Refused
    try:
        result = _compile(job, report)
    except ShardwiseError as error:
        result = Refused(error=type(error).__name__, problems=error.problems)
    except (Exception, SystemExit) as error:
        result = classify(error, report.read()[0])
    report.add_result(result)


def _compile(job: Job, report: Report) -> Compiled | Failure:
    # Imports JAX, which takes seconds, so that a process whose parent has ended is gone before.
    from shardwise.check.compiling.aot import compile_program, target_devices

    devices = target_devices(job.target)
    report.set_stage("building")

    def build() -> Program:
        program: Program = load_attribute(job.builder)(devices, **job.arguments)
        return replace(program, options={**program.options, **job.options})

    return compile_program(
        job.target,
        build,
        explain=job.explain,
        cache_path=job.cache_path,
        set_stage=report.set_stage,
        before_explaining=report.add_result,
    )


if __name__ == "__main__":
    end_with_parent(int(sys.argv[1]))
    gc.set_threshold(COLLECT_AFTER)
    main(read_job(sys.stdin.buffer), Report(os.fdopen(int(sys.argv[2]), "wb")))
