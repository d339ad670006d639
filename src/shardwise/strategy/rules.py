"""Sharding rules: which mesh axes shard which dim, in plain strings.

    weights.D      fsdp, context, expert   gathered before use, gradients reduce-scattered
    weights.F      tensor
    activations.B  data, fsdp              the batch
    residual.T     context, tensor         between blocks the sequence is split over tensor too

One table determines what the estimator communicates, what a compiler must emit and the shardings
that JAX gets.
"""

from __future__ import annotations

from collections.abc import Mapping

Rules = Mapping[str, tuple[str, ...]]

# The rows of every training strategy; a role of size 1 shards nothing. Book §5.
TRAIN: Rules = {
    "weights.E": ("expert",),
    "weights.V": ("tensor",),
    "weights.N": ("tensor",),
    "weights.K": ("tensor",),
    "weights.F": ("tensor",),
    "weights.D": ("fsdp", "context", "expert"),
    "weights.Q": ("fsdp", "context", "expert"),
    "weights.C": ("fsdp", "context", "expert"),
    "weights.C'": ("fsdp", "context", "expert"),
    "activations.B": ("data", "fsdp"),
    "activations.T": ("context",),
    "activations.S": ("context",),
    "activations.Z": ("context",),
    "activations.N": ("tensor",),
    "activations.K": ("tensor",),
    "activations.F": ("tensor",),
    "activations.V": ("tensor",),
    "residual.B": ("data", "fsdp"),
    "residual.T": ("context", "tensor"),
}


def layout(rules: Rules, kind: str, dims: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Dim -> mesh axes of one array; an axis that two rows list goes to the earlier row.

    `weights.E` shards arrays whose first of several dims is E. The router is not one of them: every
    chip scores all experts.

    Args:
        rules: the table.
        kind: `weights`, `activations` or `residual`.
        dims: the array's dims.

    >>> layout(TRAIN, "weights", ("D", "Q"))
    {'D': ('fsdp', 'context', 'expert')}
    """
    axes_of_dim: dict[str, tuple[str, ...]] = {}
    used: set[str] = set()
    for row, axes in rules.items():
        row_kind, dim = row.split(".", 1)
        is_router = row == "weights.E" and (dims[0] != "E" or len(dims) == 1)
        if row_kind != kind or dim not in dims or is_router:
            continue
        unused = tuple(axis for axis in axes if axis not in used)
        if unused:
            axes_of_dim[dim] = unused
            used.update(unused)
    return axes_of_dim


def only(rules: Rules, sizes: Mapping[str, int]) -> dict[str, tuple[str, ...]]:
    """The rules on a mesh: without axes of size 1, and without rows that become empty."""
    on_mesh = {}
    for row, axes in rules.items():
        large = tuple(axis for axis in axes if sizes.get(axis, 1) > 1)
        if large:
            on_mesh[row] = large
    return on_mesh
