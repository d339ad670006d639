"""Whether a compiled step fits in the memory of the devices, before anything is put there."""

from __future__ import annotations

from typing import Any

from shardwise import units
from shardwise.errors import DoesNotFit


def require_memory(compiled: Any, device: Any, planned_bytes: float) -> None:
    """Refuse a step that the compiler gave more memory than JAX can have on a device.

    Args:
        compiled: the step; its arguments stay in memory.
        device: one of its devices; those that do not report their memory, as CPUs, are not checked.
        planned_bytes: what the plan counted.

    Raises:
        DoesNotFit: it needs more.
    """
    limit = (device.memory_stats() or {}).get("bytes_limit")
    n_bytes = program_bytes(compiled)
    if limit and n_bytes > limit:
        plan_for = max(0.0, planned_bytes - (n_bytes - limit)) / units.GiB
        raise DoesNotFit(
            f"the compiled step needs {units.show_bytes(n_bytes)} on a device, and JAX has "
            f"{units.show_bytes(limit)} of its memory; the plan counted "
            f"{units.show_bytes(planned_bytes)}. Plan for less: ...:N,hbm={plan_for:.1f}GiB."
        )


def program_bytes(compiled: Any) -> int:
    """Bytes of a program on a device: its arguments, what it returns beside them, temporaries."""
    memory = compiled.memory_analysis()
    if memory is None:
        return 0
    results = memory.output_size_in_bytes - memory.alias_size_in_bytes
    n_bytes: int = memory.argument_size_in_bytes + results + memory.temp_size_in_bytes
    return n_bytes
