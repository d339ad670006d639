"""Loading of weights as an engine has them, one array after the other.

At any time there is one array on the devices that is not quantized yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from numpy.typing import NDArray

from shardwise.runtime.serving.engine_state import EngineState
from shardwise.runtime.weights.descriptions import ArrayInfo, Tree, map_infos
from shardwise.runtime.weights.published_weights import (
    EntriesByLayer,
    entries_by_layer,
    sharded_array,
)
from shardwise.runtime.weights.quantized import Grouped

# Returns the groups of an array as a file has them; None if it must be quantized. Its arguments
# describe the array, the dims that its product contracts, and its tensors.
StoredGroups = Callable[[ArrayInfo, tuple[int, ...], EntriesByLayer], Grouped | None]


def load_for(
    engine: EngineState,
    tensors: Mapping[str, NDArray[np.generic]],
    stored_groups: StoredGroups = lambda info, dims, by_layer: None,
) -> Tree:
    """Load all weights as an engine has them: cast or quantized, and sharded.

    Args:
        tensors: name in `tensor_names` -> numbers.
        stored_groups: finds groups that need no quantization.
    """
    mesh = engine.table.mesh.jax_mesh
    quantize = jax.jit(engine.quantize_weight, static_argnums=(0, 2))

    def array(info: ArrayInfo, dims: tuple[int, ...], by_layer: EntriesByLayer, specs: Any) -> Any:
        weight: Any = stored_groups(info, dims, by_layer)
        if weight is None:
            exact = sharded_array(info, by_layer, tensors, engine.table, engine.activation_dtype)
            weight = quantize(info, exact, dims)
        shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)
        return jax.device_put(weight, shardings)

    return map_infos(
        array,
        engine.infos,
        engine.contracted_dims,
        entries_by_layer(engine.config),
        engine.weight_specs(),
    )
