"""The operations of a decoding pass and of a prompt: priced items at peak rates."""

from __future__ import annotations

from dataclasses import replace

from shardwise.estimate.serving.engine import Engine
from shardwise.estimate.serving.load import Load
from shardwise.estimate.serving.pass_time import pass_items
from shardwise.plan.operations import collective_operation, local_operation
from shardwise.plan.schema.common import Operation


def operations(engine: Engine, load: Load, phase: str) -> tuple[Operation, ...]:
    """Every operation of one pass on the busiest chip; times are of all `count` together.

    Args:
        engine: at peak rates, so that the times add up to the roofline of the pass.
        load: what the pass computes.
        phase: `decode` or `prefill`.
    """
    listed: list[Operation] = []
    for item in pass_items(engine, load):
        work = replace(item, phase=phase)
        if work.role is None:
            listed.append(local_operation(work))
        else:
            listed += collective_operation(work, work, engine.mesh)
    return tuple(listed)
