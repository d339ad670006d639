"""Layouts of serving engines, in the terms of serving frameworks.

The sharding rules are those of a forward pass in training, with three choices:

- `weights`: "stationary" moves no weights and shards heads and MLP width over `tensor`; "2d" also
  shards D over `fsdp`, for weights and activations (book §7, app. B); "gathered" shards weights
  over `fsdp` and gathers them before each use, as training does.
- `kv`: how the KV cache is stored if `tensor` exceeds the number of KV heads: "copied" replicates
  heads (as engines on GPUs do), "batch" shards the sequences of the batch (two AllToAlls per
  layer), "sequence" shards the tokens of each sequence (partial results are combined). Book §7.
- the mesh axis `expert` shards experts and the batch of attention, and replicates dense weights
  (data-parallel attention).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardwise.arrays import Num
from shardwise.errors import BadShape, nearest, raise_all
from shardwise.strategy.mesh import Mesh
from shardwise.strategy.rules import TRAIN, Rules, only
from shardwise.vocabulary import KV_SPLITS, WEIGHT_LAYOUTS


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeForm:
    """The choices of a serving layout that are not numbers of chips.

    A search evaluates all layouts of one form at once, as arrays (`ServeLayouts`).

    Args:
        weights: how weights are sharded, one of `WEIGHT_LAYOUTS`.
        kv: how the KV cache is sharded, one of `KV_SPLITS`.
        expert_tensor: number of tensor shards of one expert's matrices; None for the size of
            `tensor`. With 1, the chips of `tensor` hold different experts.
    """

    weights: str = "stationary"
    kv: str = "copied"
    expert_tensor: int | None = None

    def __post_init__(self) -> None:
        problems = []
        options = (("weights", self.weights, WEIGHT_LAYOUTS), ("kv", self.kv, KV_SPLITS))
        for option, value, legal_values in options:
            if value not in legal_values:
                problems.append(f'unknown {option} "{value}". {nearest(value, legal_values)}')
        raise_all(BadShape, problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeLayouts(ServeForm):
    """Many layouts of one form: `sizes` maps each mesh role to an array of one size per layout."""

    sizes: Mapping[str, Num]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeLayout(ServeForm):
    """The layout of one engine.

    Args:
        mesh: size of each mesh role. `data` is the number of independent engines. Within an engine
            `tensor` shards heads and MLP width, `expert` experts and the batch, `context` the
            tokens of a prompt, `pipe` the layers, and `fsdp` D (see `weights`).
    """

    mesh: Mesh

    def __post_init__(self) -> None:
        ServeForm.__post_init__(self)
        problems = []
        if self.mesh.fsdp > 1 and self.weights == "stationary":
            problems.append(
                f'fsdp {self.mesh.fsdp} with weights "stationary": fsdp splits D, which is "2d" '
                '(activations move) or "gathered" (weights move).'
            )
        if self.expert_tensor and self.mesh.tensor % self.expert_tensor:
            problems.append(
                f"expert_tensor {self.expert_tensor} does not divide tensor {self.mesh.tensor}."
            )
        raise_all(BadShape, problems)

    @property
    def sizes(self) -> dict[str, int]:
        """Mesh role -> size."""
        return self.mesh.sizes

    @property
    def n_chips(self) -> int:
        """Chips of one engine."""
        return self.mesh.n_chips // self.mesh.data


def serve_table(form: ServeForm) -> Rules:
    """The sharding rules of a form, with all mesh axes, since their sizes are not known yet.

    B counts the tokens of a pass, whatever their sequence, so that `context` shards B too.
    """
    rules: dict[str, tuple[str, ...]]
    rules = {row: axes for row, axes in TRAIN.items() if axes == ("tensor",)}
    batch_axes: tuple[str, ...] = ("expert", "context")
    if form.weights == "gathered":
        batch_axes = ("expert", "context", "fsdp")
    rules["activations.B"] = batch_axes
    rules["residual.B"] = batch_axes
    if form.weights != "stationary":
        rules |= {f"weights.{dim}": ("fsdp",) for dim in ("D", "Q", "C", "C'")}
    if form.weights == "2d":
        # In[B, D_XY]: gathered over Y for the product with W[D_X, F_Y], summed over X after it.
        rules["residual.D"] = ("fsdp", "tensor")
    return rules


def serve_rules(layout: ServeLayout) -> Rules:
    """The sharding rules of a layout, with the mesh axes whose size is above 1."""
    return only(serve_table(layout), layout.sizes)
