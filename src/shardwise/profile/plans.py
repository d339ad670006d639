"""The plan that is kept beside a trace."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

from shardwise.errors import ShardwiseError
from shardwise.hardware import Chip
from shardwise.plan.machine import system_of
from shardwise.plan.schema.common import SCHEMA
from shardwise.plan.schema.json_io import load
from shardwise.runtime.recording import PLAN_FILE

DECODE = "jit_decode"  # the program of an engine that generates tokens


def plan_beside(trace: str) -> str:
    """The file of the plan beside a trace; empty if there is none.

    Args:
        trace: the folder that `jax.profiler` was given, or a file in it.
    """
    path = Path(trace)
    folders = [path] if path.is_dir() else [parent.parent for parent in path.absolute().parents]
    for folder in folders[:3]:
        file = folder / PLAN_FILE
        is_trace = (folder / "plugins" / "profile").is_dir()
        if is_trace and file.is_file() and _is_plan(file):
            return str(file)
    return ""


def _is_plan(file: Path) -> bool:
    try:
        return bool(json.loads(file.read_bytes())["schema"] == SCHEMA)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def step_program(plan: str, ran: Collection[str]) -> str:
    """The program that is the step of a plan, if it ran: of an engine that which decodes."""
    if not plan or DECODE not in ran:
        return ""
    workload = json.loads(Path(plan).read_bytes()).get("workload", {})
    return DECODE if workload.get("kind") == "serve" else ""


def chip_of(plan: str) -> Chip | None:
    """The chip of a plan; None if this version, or this folder, does not know its machine."""
    try:
        return system_of(load(plan).hardware).chip
    except ShardwiseError:
        return None
