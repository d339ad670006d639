"""The plan: one strategy with its inputs, its numbers and its reasons, as a value and as JSON.

In: model, system, work. Out: a `Plan`, which is all that checking, running and comparing need.
Layer 6, the last one without JAX.
"""

from shardwise.plan.build import evaluate
from shardwise.plan.document import decode, encode, load, save
from shardwise.plan.entry import plan, search
from shardwise.plan.serve_value import ServingPlan
from shardwise.plan.value import Alternative, Operation, Plan, Reason

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
    "save",
    "search",
]
