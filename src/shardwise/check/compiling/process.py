"""Compile in a separate process, with limits, since compilers may crash, hang or leak memory."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from shardwise import errors
from shardwise.check.compiling import cache
from shardwise.check.compiling.job import Job, Report, write_job
from shardwise.check.compiling.result import (
    Compiled,
    Failure,
    Killed,
    MemoryLimit,
    OtherFailure,
    OutOfMemory,
    Refused,
    Timeout,
)

# Environment variables that keep the TPU's compiler from querying the network, logging, and
# locking a TPU.
COMPILER_ENVIRONMENT = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_LOG_DIR": "disabled",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TPU_MIN_LOG_LEVEL": "3",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}

_JAX_ENVIRONMENT = {"JAX_PLATFORMS": "cpu", "JAX_ENABLE_COMPILATION_CACHE": "false"}

_POLL_S = 0.05  # seconds between two looks at the process
_LOG_BYTES = 4000  # bytes at the end of the log that a failure quotes

# Called with a stage of `job.STAGES` and the seconds since the start.
OnStage = Callable[[str, float], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a compiling process: wall-clock seconds, and bytes of resident memory."""

    wall_s: float = 900.0
    rss_bytes: int = 16 * 2**30


def compile_job(
    job: Job, *, limits: Limits | None = None, on_stage: OnStage | None = None
) -> Compiled | Failure:
    """Compile in a new process, and kill it if it exceeds its limits.

    Args:
        job: the program and the target.
        limits: defaults to `Limits()`.
        on_stage: called several times per second with the stage (of `job.STAGES`) and the seconds
            since the start.

    Raises:
        ShardwiseError: the error that the builder raised, with its own class (`BadInput`, ...).
    """
    if not (job.cache_path and job.self_contained):
        return _compile(job, limits or Limits(), on_stage)
    folder = Path(job.cache_path)
    key = cache.job_key(job)
    result: Compiled | Failure | None = cache.read(folder, key)
    if result is None:
        result = _compile(replace(job, cache_path=""), limits or Limits(), on_stage)
        if isinstance(result, Compiled) or (
            isinstance(result, OutOfMemory) and (result.program or not job.explain)
        ):
            cache.write(folder, key, result)
    return result


def _compile(job: Job, limits: Limits, on_stage: OnStage | None) -> Compiled | Failure:
    """Compile in a new process.

    The two processes share files without names, so that nothing is left of them if both are killed.
    """
    with (
        tempfile.TemporaryFile() as job_file,
        tempfile.TemporaryFile() as report_file,
        tempfile.TemporaryFile() as log,
    ):
        write_job(job_file, job)
        words = ["-P", "-m", "shardwise.check.compiling.worker"]
        process = subprocess.Popen(
            [sys.executable, *words, str(os.getpid()), str(report_file.fileno())],
            env=_process_environment(job),
            stdin=job_file,
            stdout=log,
            stderr=log,
            pass_fds=[report_file.fileno()],
            start_new_session=True,
        )
        report = Report(report_file)
        try:
            failure = _watch(process, report, limits, on_stage)
        finally:
            _kill(process)
        stage, result = report.read()
        if result is None:
            return failure or _ended_early(process, stage, log)
    if isinstance(result, Refused):
        raise getattr(errors, result.error, errors.BadInput)(*result.problems)
    # It stands even if a limit ended the process afterwards, while it compiled an explanation.
    return result


def _process_environment(job: Job) -> dict[str, str]:
    env = {**os.environ, **COMPILER_ENVIRONMENT, **_JAX_ENVIRONMENT}
    # Let the process import the same modules as this one, including those in a script's folder.
    env["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
    if job.target.platform == "cpu":
        flag = f"--xla_force_host_platform_device_count={job.target.n_devices}"
        env["XLA_FLAGS"] = f"{env.get('XLA_FLAGS', '')} {flag}".strip()
    return env


def _watch(
    process: subprocess.Popen[bytes], report: Report, limits: Limits, on_stage: OnStage | None
) -> Failure | None:
    """Wait for the process to end; return a failure if it exceeds a limit first."""
    start = time.monotonic()
    while process.poll() is None:
        elapsed = time.monotonic() - start
        stage, _ = report.read()
        if on_stage:
            on_stage(stage, elapsed)
        if elapsed > limits.wall_s:
            return Timeout(stage=stage, limit_s=limits.wall_s)
        rss_bytes = _rss_bytes(process.pid)
        if rss_bytes > limits.rss_bytes:
            return MemoryLimit(stage=stage, limit=limits.rss_bytes, reached=rss_bytes)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_POLL_S)
    return None


def _rss_bytes(pid: int) -> int:
    """Resident memory of a process, 0 where the system does not report it."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the process and its children; compilers ignore milder signals."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _ended_early(process: subprocess.Popen[bytes], stage: str, log: BinaryIO) -> Failure:
    """The failure of a process that ended without a result, with the last words of its log."""
    if process.returncode == -signal.SIGKILL:
        return Killed(stage=stage)
    log.seek(0)
    last_words = log.read()[-_LOG_BYTES:].decode(errors="replace").strip()
    text = f"the compiler's process exited with code {process.returncode}.\n{last_words}"
    return OtherFailure(stage=stage, text=text.strip())
