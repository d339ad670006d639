"""The plan: one strategy with its inputs, its predicted numbers and its reasons.

`plan` takes a model, a machine and a workload, and returns a `Plan` or a `ServingPlan`. Checking,
running and comparing need nothing else. Plans are saved as JSON. Layer 7, the last one without JAX.
"""

from shardwise.plan.api import explain, plan, search, sweep
from shardwise.plan.schema.json_io import decode, load
from shardwise.plan.schema.json_output import encode, write
from shardwise.plan.schema.serving import ServingPlan
from shardwise.plan.schema.training import Plan
from shardwise.plan.training.build import evaluate

__all__ = [
    "Plan",
    "ServingPlan",
    "decode",
    "encode",
    "evaluate",
    "explain",
    "load",
    "plan",
    "search",
    "sweep",
    "write",
]
