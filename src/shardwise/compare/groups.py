"""Groups of the operations of a step, the same for plans, compiled programs and traces."""

from __future__ import annotations

from shardwise.check.causes import planned_part
from shardwise.check.comparison import ATTENTION as ATTENTION_CORE
from shardwise.profile.categories import (
    ATTENTION,
    CALLBACK,
    COMMUNICATION,
    COPY,
    GAP,
    HOST,
    LOOP,
    MATMUL,
    WAIT,
)

ATTENTION_GROUP = "attention"
PROJECTIONS = "attention matmuls"
MLP = "MLP matmuls"
EXPERTS = "expert matmuls"
MAMBA = "mamba"
ENDS = "embedding, unembedding"
ELEMENTWISE_GROUP = "elementwise"
OPTIMIZER = "optimizer"
BUBBLE = "pipeline bubble"
COPIES = "copies, transposes"
LOOPS = "loops"
IDLE = "idle in the program"
BETWEEN = "idle between programs"
WAITING = "waiting for devices"
CALLBACKS = "callbacks on the host"
OTHER_MATMULS = "matmuls not in the plan"
COMMUNICATION_GROUP = "communication"
MATMULS = "matmuls"  # of a serving plan, which prices them together
STEP = "step"

OUTSIDE_PLAN = (OTHER_MATMULS, COPIES, WAITING, CALLBACKS, LOOPS, IDLE, BETWEEN)
MATMUL_GROUPS = (MATMULS, PROJECTIONS, MLP, EXPERTS, MAMBA, ENDS)

_BLOCKS = {"attn": PROJECTIONS, "mlp": MLP, "moe": EXPERTS, "mamba": MAMBA}
_ENDS = ("embed", "unembed", "loss")
_CATEGORIES = {
    COPY: COPIES,
    WAIT: WAITING,
    CALLBACK: CALLBACKS,
    LOOP: LOOPS,
    GAP: IDLE,
    HOST: BETWEEN,
    COMMUNICATION: "",
}


def planned_group(name: str) -> str:
    """The group of a planned operation that is not a collective."""
    operation = planned_part(name)
    if operation == ATTENTION_CORE:
        return ATTENTION_GROUP
    first = operation.partition(".")[0]
    if first in _BLOCKS:
        return _BLOCKS[first]
    if first in _ENDS:
        return ENDS
    return OPTIMIZER if first == OPTIMIZER else ELEMENTWISE_GROUP


def measured_group(name: str, category: str) -> str:
    """The group of an operation of a trace; empty for a collective.

    Args:
        name: of the operation in the model, or in the program.
    """
    if category in _CATEGORIES:
        return _CATEGORIES[category]
    if category == ATTENTION:
        return ATTENTION_GROUP
    operation = name.partition("+")[0]  # of several that the compiler has combined
    group = planned_group(operation)
    if category == MATMUL:
        return OTHER_MATMULS if group == ELEMENTWISE_GROUP else group
    return group if group in (ENDS, OPTIMIZER) else ELEMENTWISE_GROUP


def communication_group(role: str) -> str:
    """The group of the exposed collectives of a mesh role."""
    return f"{role} {COMMUNICATION_GROUP}"
