"""Optimizers of optax, by the plan's words, and where their state lies.

Most are element-wise: each chip updates its part of a weight inside the step. Adafactor takes means
over rows and columns and Muon whole matrices, so theirs is left to the compiler: it is told where
gradients, weights and state lie, and finds the communication itself.

A matrix of layers is stacked [L, ...]; each layer's is one of its own. Adafactor's factors are of
the two largest dims of an array, and its clipping and scale are of all layers together.
"""

from __future__ import annotations

from typing import Any

import jax
import optax
from jax.sharding import PartitionSpec
from optax.contrib import MuonDimensionNumbers, muon

from shardwise.estimate.training.optimizer import NEWTON_SCHULZ_STEPS, parameter_kind
from shardwise.runtime.weights.descriptions import ArrayInfo, Tree, each, owner

ELEMENTWISE = ("adamw", "momentum", "sgd")
WHOLE = ("adafactor", "muon")  # read more than the element that they update
MUON_RMS = 0.2  # of an update, as AdamW's are: arXiv 2502.16982, section 2.2


def optimizer(
    name: str,
    rate: Any,
    infos: Tree,
    *,
    b1: float = 0.9,
    b2: float = 0.95,
    decay: float = 0.1,
    mask: Tree | None = None,
) -> optax.GradientTransformation:
    """The optimizer of that name.

    Args:
        rate: a number, or a schedule of optax.
        infos: the weights as descriptions.
        decay: of weights, under AdamW and Muon.
        mask: which weights decay under AdamW; None for all. Under Muon matrices do.
    """
    if name == "adamw":
        return optax.adamw(rate, b1=b1, b2=b2, weight_decay=decay, mask=mask)
    if name == "adafactor":
        return optax.adafactor(rate)
    if name == "muon":
        return muon(
            rate,
            ns_steps=NEWTON_SCHULZ_STEPS,
            weight_decay=decay,
            adam_b1=b1,
            adam_b2=b2,
            muon_weight_dimension_numbers=each(sides, infos),
            consistent_rms=MUON_RMS,
        )
    return optax.sgd(rate, momentum=b1 if name == "momentum" else None)


def sides(info: ArrayInfo) -> MuonDimensionNumbers | None:
    """The dims of a weight that are rows and columns of its matrix; None where it is none to Muon.

    [D, N, H] maps D to heads, [N, H, D] heads to D; layers and experts have matrices of their own.
    """
    if parameter_kind(info.weight) != "matrix":
        return None
    dims = info.weight.dims
    routed = dims[0] == "E" and len(dims) == 3
    kept = tuple(range(len(info.shape)))[bool(info.layers) + routed :]
    cut = len(kept) - 1 if dims[-1] == "D" else 1
    return MuonDimensionNumbers(reduction_axis=kept[:cut], output_axis=kept[cut:])


def state_specs(state: Any, whole: Tree, parts: Tree) -> Any:
    """Layout of an optimizer's state: what has the shape of its weight lies as its updated part
    does, all else on every chip.

    Args:
        state: shapes of the state.
        whole: shapes of the weights.
        parts: layouts of what chips update of them.
    """
    shapes = jax.tree_util.tree_leaves_with_path(whole)
    specs = jax.tree.leaves(parts, is_leaf=lambda x: isinstance(x, PartitionSpec))
    known = {path: (x.shape, spec) for (path, x), spec in zip(shapes, specs, strict=True)}

    def spec(path: tuple[Any, ...], x: Any) -> PartitionSpec:
        shape, spec = owner(path, known) or (None, PartitionSpec())
        return spec if shape == x.shape else PartitionSpec()

    return jax.tree_util.tree_map_with_path(spec, state)
