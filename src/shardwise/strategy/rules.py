"""Sharding rules: a table of the mesh axes that shard each dim of each kind of array.

    weights.D      fsdp, context, expert   gathered before use, gradients reduce-scattered
    weights.F      tensor
    activations.B  data, fsdp              the batch
    residual.T     context, tensor         between blocks, `tensor` shards the sequence too

The letters of the dims are those of `models.weights`; T and S are tokens as queries and as keys, Z
chunks of a Mamba scan. The estimator, the check of compiled programs and the shardings that the
runtime gives to JAX all read the same table.
"""

from __future__ import annotations

from collections.abc import Mapping

Rules = Mapping[str, tuple[str, ...]]

# All rules of training; `only` removes the roles that a mesh does not have. Book §5.
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
    """The mesh axes that shard each dim of one array; dims that nothing shards are left out.

    If two rows list the same axis, the earlier row gets it. `weights.E` applies to arrays of
    several dims that begin with E, not to the router [D, E]: every chip scores all experts.

    Args:
        kind: `weights`, `activations` or `residual`.
        dims: letters of the array's dims.

    >>> layout(TRAIN, "weights", ("D", "Q"))
    {'D': ('fsdp', 'context', 'expert')}
    """
    axes_of_dim: dict[str, tuple[str, ...]] = {}
    used: set[str] = set()
    for row, axes in rules.items():
        row_kind, dim = row.split(".", 1)
        is_router = row == "weights.E" and (dims[0] != "E" or len(dims) == 1)  # or its bias
        if row_kind != kind or dim not in dims or is_router:
            continue
        unused = tuple(axis for axis in axes if axis not in used)
        if unused:
            axes_of_dim[dim] = unused
            used.update(unused)
    return axes_of_dim


def only(rules: Rules, sizes: Mapping[str, int]) -> dict[str, tuple[str, ...]]:
    """The rules that matter on a mesh: without its axes of size 1, and without empty rows."""
    on_mesh = {}
    for row, axes in rules.items():
        large = tuple(axis for axis in axes if sizes.get(axis, 1) > 1)
        if large:
            on_mesh[row] = large
    return on_mesh
