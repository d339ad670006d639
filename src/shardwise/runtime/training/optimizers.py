"""Optimizers of optax, by the names that plans use, and the sharding of their state.

Most are elementwise: each chip updates its part of a weight inside the step. Adafactor takes means
over rows and columns, and Muon needs whole matrices. Their updates run on global arrays: the
compiler gets the layouts of gradients, weights and state, and chooses the communication.

The matrices of layers are stacked, [L, ...]. Muon treats each layer's matrix separately. Adafactor
factors the two largest dims of the stacked array; it clips and scales all layers together.
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
WHOLE_ARRAY = ("adafactor", "muon")  # update an element by reading others of its array
# Root mean square of Muon's updates, about that of AdamW's: arXiv 2502.16982, section 2.2.
MUON_RMS = 0.2


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
    """Make an optimizer by its name.

    Args:
        name: name in `ELEMENTWISE` or `WHOLE_ARRAY`.
        rate: learning rate, a number or a schedule of optax.
        infos: descriptions of the weights.
        b1: decay of the first moment, or the momentum of `momentum`.
        b2: decay of the second moment.
        decay: weight decay of AdamW and Muon.
        mask: weights to which AdamW applies weight decay; None for all. Muon applies it to
            matrices.
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
    """Input and output dims of a weight as a matrix for Muon; None if Muon does not update it.

    A weight [D, N, H] maps D to N x H, a weight [N, H, D] maps N x H to D. Each layer and each
    expert has a separate matrix.
    """
    if parameter_kind(info.weight) != "matrix":
        return None
    dims = info.weight.dims
    axes = tuple(range(len(info.shape)))[bool(info.n_layers) + info.weight.per_expert :]
    n_inputs = 1
    if dims[-1] == "D":
        n_inputs = len(axes) - 1
    return MuonDimensionNumbers(reduction_axis=axes[:n_inputs], output_axis=axes[n_inputs:])


def state_specs(state: Any, weights: Tree, update_specs: Tree) -> Any:
    """Partition specs of an optimizer's state.

    An array with the shape of its weight is sharded as the update of that weight; all other arrays
    are replicated.

    Args:
        state: shapes of the state.
        weights: shapes of the weights.
        update_specs: partition specs of the updates of the weights.
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
