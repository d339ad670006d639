"""Settings of XLA for programs that the tests compile, run for a few steps and throw away."""

from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any
from unittest.mock import patch

# Most of the time of such a program is the compiler's. Older emitters and one module of code for
# the whole program take a third less of it than the defaults, beside the least optimization.
LEAST_COMPILE_TIME = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
)

# Environment of processes that show no line of their source: programs without lines are lowered in
# a twelfth less time.
NO_SOURCE_LINES = {"JAX_TRACEBACK_IN_LOCATIONS_LIMIT": "0"}

# XLA's CPU backend starts a collective beside a loop that still communicates, and gives all
# collectives of `shard_map` one channel. On a busy machine the two meet, in about one step of ten
# thousand, and the process aborts with the first of these texts. With the second, devices wait for
# each other in two independent collectives. A program with a deadlock of its own has it again.
COLLIDED = ("Check failed: state.use_count() == num_threads", "Termination timeout for `")


def completed(
    command: list[str], fills: Path | None = None, **how: Any
) -> subprocess.CompletedProcess[str]:
    """Run a command and capture what it prints; run it once more if XLA's collectives collided.

    Args:
        fills: a folder that the command finds empty.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=False, **how)
    if done.returncode == -signal.SIGABRT and any(text in done.stderr for text in COLLIDED):
        if fills:
            shutil.rmtree(fills)
            fills.mkdir()
        done = subprocess.run(command, capture_output=True, text=True, check=False, **how)
    return done


def share_programs() -> None:
    """From here on, compile a program once, whatever run it is of.

    JAX's cache on disk would do so too, but what it reads for several CPU devices may crash.
    """
    from jax.stages import Lowered

    compile_anew, programs = Lowered.compile, {}

    def compile_once(lowered: Lowered, compiler_options: Any = None) -> Any:
        key = (lowered.as_text(), str(lowered.in_tree), str(compiler_options))
        if key not in programs:
            programs[key] = compile_anew(lowered, compiler_options)
        return programs[key]

    patch.object(Lowered, "compile", compile_once).start()
