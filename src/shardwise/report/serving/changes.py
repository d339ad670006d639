"""What a change of a deployment is, in words."""

from __future__ import annotations

from shardwise.plan.serving.changes import Change, Difference
from shardwise.report.words import mesh_text


def difference_text(differs: Difference) -> str:
    """What differs from the deployment itself."""
    n = differs.n
    return {
        "none": "as it is",
        "weights": f"{differs.dtype} weights",
        "kv": f"{differs.dtype} KV cache",
        "half_context": "half the context",
        "drafted": f"{n} drafted tokens, {differs.share:.0%} kept",
        "prefix_cache": f"prefix cache of {differs.share:.0%}",
        "kv_heads": f"{n} KV head{'s' * (n > 1)}",
        "window": f"window of {n:,} keys",
        "full_batch": "as many sequences as fit",
        "twice_the_chips": "twice the chips",
        "gathered": "FSDP, as in training",
        "searched": "best",
    }[differs.kind]


def engine_text(change: Change) -> str:
    """`tensor 32, v5e:4x8`; nothing where the engine is that of the plan."""
    if change.mesh is None:
        return ""
    if change.differs.kind == "gathered":
        return f"fsdp {change.mesh['fsdp']}"
    return f"{mesh_text(change.mesh)}, {change.hardware}"
