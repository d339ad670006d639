"""The table of a strategy: which mesh axes shard which dim, in plain strings.

    weights.D      fsdp, context, expert   gathered before use, gradients reduce-scattered
    weights.F      tensor
    activations.B  data, fsdp              the batch
    residual.T     context, tensor         between blocks the sequence is split over tensor too

One table says what the estimator communicates, what a compiler must emit and what JAX is told.
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
    """Dim -> mesh axes of one array. Where two dims ask for an axis, the earlier row has it.

    Experts are dealt out with the matrices (and biases of several widths) whose first dim they are;
    every chip scores all of them, with the whole router.

    Args:
        rules: the table.
        kind: `weights`, `activations` or `residual`.
        dims: the array's dims.

    >>> layout(TRAIN, "weights", ("D", "Q"))
    {'D': ('fsdp', 'context', 'expert')}
    """
    used: set[str] = set()
    found = {}
    for row, axes in rules.items():
        row_kind, dim = row.split(".", 1)
        scored = row == "weights.E" and (dims[0] != "E" or len(dims) == 1)
        if row_kind != kind or dim not in dims or scored:
            continue
        free = tuple(a for a in axes if a not in used)
        if free:
            found[dim] = free
            used.update(free)
    return found


def only(rules: Rules, axes: Mapping[str, int]) -> dict[str, tuple[str, ...]]:
    """The rows as a mesh uses them: without the axes of size 1, without empty rows."""
    kept = {row: tuple(a for a in names if axes.get(a, 1) > 1) for row, names in rules.items()}
    return {row: names for row, names in kept.items() if names}
