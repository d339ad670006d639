"""The plan: one strategy with its inputs, its numbers and its reasons, as a value and as JSON.

In: model, system, work. Out: a `Plan`, which is all that checking, running and comparing need.
Layer 7, the last one without JAX.
"""

from shardwise.plan.api import plan, search
from shardwise.plan.schema.json_io import decode, encode, load, write
from shardwise.plan.schema.serving import ServingPlan
from shardwise.plan.schema.training import Alternative, Operation, Plan, Reason
from shardwise.plan.training.build import evaluate

__all__ = [
    "Alternative",
    "Operation",
    "Plan",
    "Reason",
    "ServingPlan",
    "decode",
    "encode",
    "evaluate",
    "load",
    "plan",
    "search",
    "write",
]
