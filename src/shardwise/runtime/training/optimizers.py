"""Optimizers of optax by the plan's names, and the layout of their state.

Most are element-wise: each chip updates its part of a weight inside the step. Adafactor takes means
over rows and columns, and Muon needs whole matrices. Their updates run on global arrays: the
compiler gets the layouts of gradients, weights and state, and chooses the communication.

Matrices of layers are stacked [L, ...], and Muon treats each layer's as a separate matrix.
Adafactor factors the two largest dims of an array; it clips and scales all layers together.
"""

from __future__ import annotations

from typing import Any

import jax
import optax
from jax.sharding import PartitionSpec
from optax.contrib import MuonDimensionNumbers, muon

from shardwise.estimate.training.optimizer import NEWTON_SCHULZ_STEPS, parameter_kind
from shardwise.runtime.weights.descriptions import ArrayInfo, Tree, map_infos, weight_of_state

ELEMENTWISE = ("adamw", "momentum", "sgd")
WHOLE_ARRAY = ("adafactor", "muon")  # read more than the element that they update
MUON_RMS = 0.2  # of an update, to match AdamW's: arXiv 2502.16982, section 2.2


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
    """Make the optimizer of a name.

    Args:
        name: of `ELEMENTWISE` or `WHOLE_ARRAY`.
        rate: learning rate, a number or a schedule of optax.
        infos: descriptions of the weights.
        b1: decay of the first moment, or the momentum.
        b2: decay of the second moment.
        decay: weight decay, under AdamW and Muon.
        mask: weights that decay under AdamW; None for all. Under Muon matrices do.
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
            muon_weight_dimension_numbers=map_infos(matrix_dims, infos),
            consistent_rms=MUON_RMS,
        )
    if name == "momentum":
        return optax.sgd(rate, momentum=b1)
    return optax.sgd(rate)


def matrix_dims(info: ArrayInfo) -> MuonDimensionNumbers | None:
    """Dims of a weight that are rows and columns of its matrix; None if Muon skips it.

    [D, N, H] maps D to heads, [N, H, D] maps heads to D. Each layer and each expert has a separate
    matrix.
    """
    if parameter_kind(info.weight) != "matrix":
        return None
    dims = info.weight.dims
    axes = tuple(range(len(info.shape)))[bool(info.layers) + info.weight.per_expert :]
    n_inputs = 1
    if dims[-1] == "D":
        n_inputs = len(axes) - 1
    return MuonDimensionNumbers(reduction_axis=axes[:n_inputs], output_axis=axes[n_inputs:])


def state_specs(state: Any, weights: Tree, update_specs: Tree) -> Any:
    """Layout of an optimizer's state: arrays shaped like their weight lie as its update does, and
    all others are replicated.

    Args:
        state: shapes of the state.
        weights: shapes of the weights.
        update_specs: layouts of the updates.
    """
    paths = jax.tree_util.tree_leaves_with_path(weights)
    specs = jax.tree.leaves(update_specs, is_leaf=lambda x: isinstance(x, PartitionSpec))
    by_path = {path: (x.shape, spec) for (path, x), spec in zip(paths, specs, strict=True)}

    def spec_of(path: tuple[Any, ...], x: Any) -> PartitionSpec:
        shape, spec = weight_of_state(path, by_path) or (None, PartitionSpec())
        if shape != x.shape:
            return PartitionSpec()
        return spec

    return jax.tree_util.tree_map_with_path(spec_of, state)
