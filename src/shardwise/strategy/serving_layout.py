"""How an engine that serves a model is laid over its chips, in the words of serving frameworks.

The sharding table is that of training without its backward pass, with three choices:

- `weights`: "stationary" keeps every weight where it is and splits heads and MLP width over
  `tensor`; "2d" splits D over `fsdp` as well, activations too (book §7, app. B); "gathered" splits
  weights over `fsdp` and gathers them before each use, as training does.
- `kv`: where `tensor` is larger than the key and value heads, they are "copied" (what engines on
  GPUs do), or the cache is split over the "batch" (two AllToAlls a layer) or over the "sequence"
  (partial results are joined). Book §7.
- `expert`: the batch of attention is split over it and dense weights are copied (data-parallel
  attention), while experts are dealt out.
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
    """What layouts of engines have in common that are evaluated together.

    Args:
        weights: one of `WEIGHT_LAYOUTS`.
        kv: one of `KV_SPLITS`.
        expert_tensor: ways to split the matrices of one expert; None for as many as `tensor`. With
            1, whole experts lie on the chips of `tensor` too.
    """

    weights: str = "stationary"
    kv: str = "copied"
    expert_tensor: int | None = None

    def __post_init__(self) -> None:
        problems = []
        words = (("weights", self.weights, WEIGHT_LAYOUTS), ("kv", self.kv, KV_SPLITS))
        for what, word, known in words:
            if word not in known:
                problems.append(f'unknown {what} "{word}". {nearest(word, known)}')
        raise_all(BadShape, problems)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeLayouts(ServeForm):
    """Many layouts of one form: arrays of sizes by role of the mesh."""

    sizes: Mapping[str, Num]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeLayout(ServeForm):
    """How an engine is laid over chips.

    Args:
        mesh: chips by role. `data` counts engines that share nothing, `tensor` splits heads and
            MLP width, `expert` deals out experts and the batch, `context` splits the tokens of a
            prompt, `pipe` the layers, `fsdp` D as `weights` says.
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
        """Chips by role of the mesh."""
        return self.mesh.sizes

    @property
    def n_chips(self) -> int:
        """Chips of one engine."""
        return self.mesh.n_chips // self.mesh.data


def serve_table(form: ServeForm) -> Rules:
    """The sharding table of all layouts of a form, with every axis, whatever its size.

    Rows are tokens of a pass, whichever sequence they belong to, so `context` splits them too.
    """
    rules: dict[str, tuple[str, ...]] = {r: a for r, a in TRAIN.items() if a == ("tensor",)}
    batch = ("expert", "context") + (("fsdp",) if form.weights == "gathered" else ())
    rules["activations.B"] = rules["residual.B"] = batch
    if form.weights != "stationary":
        rules |= {f"weights.{dim}": ("fsdp",) for dim in ("D", "Q", "C", "C'")}
    if form.weights == "2d":
        # In[B, D_XY]: gathered over Y for the product with W[D_X, F_Y], summed over X after it.
        rules["residual.D"] = ("fsdp", "tensor")
    return rules


def serve_rules(layout: ServeLayout) -> Rules:
    """The sharding table of a layout: the axes that it has."""
    return only(serve_table(layout), layout.sizes)
