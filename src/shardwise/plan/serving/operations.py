"""The operations of a decoding pass and of a prefill pass, at peak rates."""

from __future__ import annotations

from dataclasses import replace

from shardwise.estimate.serving.engine import Engine
from shardwise.estimate.serving.load import Load
from shardwise.estimate.serving.pass_time import pass_items
from shardwise.plan.operations import collective_operation, local_operation
from shardwise.plan.schema.common import Operation


def operations(engine: Engine, load: Load, phase: str) -> tuple[Operation, ...]:
    """List all operations of a pass on the busiest chip; times cover all `count` occurrences.

    Args:
        engine: the engine at peak rates, so that the times add up to the roofline of the pass.
        load: the tokens of the pass and their contexts.
        phase: `decode` or `prefill`.
    """
    pass_operations: list[Operation] = []
    for item in pass_items(engine, load):
        item = replace(item, phase=phase)
        if item.role is None:
            pass_operations.append(local_operation(item))
        else:
            pass_operations += collective_operation(item, item, engine.mesh)
    return tuple(pass_operations)
