"""Changes of a serving deployment, such as another dtype or batch, as phrases."""

from __future__ import annotations

from shardwise.plan.serving.changes import Change, Difference
from shardwise.report.words import counted, mesh_text


def difference_text(difference: Difference) -> str:
    """How a changed deployment differs from that of the plan: `int8 weights`, `twice the chips`."""
    n = difference.n
    return {
        "none": "this plan",
        "weights": f"{difference.dtype} weights",
        "kv": f"{difference.dtype} KV cache",
        "half_context": "half the context",
        "drafted": f"{n} drafted tokens, {difference.share:.0%} accepted",
        "prefix_cache": f"prefix cache of {difference.share:.0%}",
        "kv_heads": counted(n, "KV head"),
        "window": f"window of {n:,} keys",
        "full_batch": "the largest batch that fits",
        "twice_the_chips": "twice the chips",
        "gathered": "FSDP, as in training",
        "searched": "best",
    }[difference.kind]


def engine_text(change: Change) -> str:
    """The changed engine, `tensor 32, v5e:4x8`; empty if it is the engine of the plan."""
    if change.mesh is None:
        return ""
    if change.differs.kind == "gathered":
        return f"fsdp {change.mesh['fsdp']}"
    return f"{mesh_text(change.mesh)}, {change.hardware}"
