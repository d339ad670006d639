"""Settings of XLA for programs that the tests compile, run for a few steps and throw away."""

from __future__ import annotations

# Most of the time of such a program is the compiler's. Older emitters and one module of code for
# the whole program take a third less of it than the defaults, beside the least optimization.
LEAST_COMPILE_TIME = (
    "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
)

# Environment of processes that show no line of their source: programs without lines are lowered in
# a twelfth less time.
NO_SOURCE_LINES = {"JAX_TRACEBACK_IN_LOCATIONS_LIMIT": "0"}
