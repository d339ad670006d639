"""Reader and writer of published weights: safetensors files in the naming of a model's family.

Each chip's shard of each array is read separately, layer by layer, so memory holds only the shard
that is being assembled.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding
from numpy.typing import NDArray

from shardwise.errors import BadFile
from shardwise.models import ModelConfig
from shardwise.models.tensor_names import Entry, entries
from shardwise.runtime.layout.sharding import Table, divisible_spec
from shardwise.runtime.weights.descriptions import ArrayInfo, Tree, describe, layer_stacks
from shardwise.runtime.weights.safetensors import TensorInfo, read_tensors, write_tensors

Numbers = NDArray[Any]
Index = tuple[slice, ...]
WeightKey = tuple[int | None, str]  # (layer or None, name of the weight)
# The tensor of each weight, or those of its experts.
EntriesByWeight = Mapping[WeightKey, Sequence[Entry]]

VISION_PREFIX = "language_model."  # of names in files of models with vision
GPT2_PREFIX = "transformer."  # which early files of GPT-2 leave out


def load_weights(folder: Path, config: ModelConfig, table: Table, dtype: Any) -> Tree:
    """Load the weights of a published model, sharded by the table.

    Args:
        folder: with the *.safetensors files.
        config: the model, of a family with known tensor names.
        table: rules on the mesh.
        dtype: of the arrays.

    Raises:
        BadFile: files are missing, unreadable, or of another model.
        BadInput: the tensor names of the family are unknown.
    """
    entries_by_weight = _entries_by_weight(config)
    files = read_tensors(folder)
    shapes: dict[str, tuple[int, ...]] = {}
    tensors: dict[str, Numbers] = {}
    for weight_entries in entries_by_weight.values():
        for entry in weight_entries:
            shapes[entry.tensor] = entry.layout.file_shape
            tensor = _find(entry.tensor, files)
            if tensor is not None:
                tensors[entry.tensor] = tensor
    _check(folder, shapes, tensors)

    def array(info: ArrayInfo, layers: Sequence[int | None]) -> jax.Array:
        by_layer = [entries_by_weight[layer, info.weight.name] for layer in layers]
        return _sharded(info, by_layer, tensors, table, dtype)

    infos = describe(config, table)
    return {
        "layers": [
            {name: array(info, layer_stack.layers) for name, info in weights.items()}
            for layer_stack, weights in zip(layer_stacks(config), infos["layers"], strict=True)
        ],
        "outer": {name: array(info, (None,)) for name, info in infos["outer"].items()},
    }


def save_weights(
    folder: Path, config: ModelConfig, weights: Tree, max_file_bytes: int = 5_000_000_000
) -> None:
    """Write weights as the model's family publishes them, in their present dtype.

    Several processes call it together: process 0 writes, and gathers the shards of the others, one
    layer at a time.

    Args:
        folder: created if missing.
        config: the model.
        weights: in the form of `load_weights`.
        max_file_bytes: size limit of a file.

    Raises:
        BadInput: the tensor names of the family are unknown.
    """
    arrays: dict[WeightKey, tuple[jax.Array, int | None]] = {}
    for layer_stack, stacked in zip(layer_stacks(config), weights["layers"], strict=True):
        for name, array in stacked.items():
            for index, layer in enumerate(layer_stack.layers):
                arrays[layer, name] = (array, index)
    for name, array in weights["outer"].items():
        arrays[None, name] = (array, None)
    entries_by_tensor: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries(config):
        entries_by_tensor[entry.tensor].append(entry)

    def load(info: TensorInfo) -> Numbers:
        tensor = np.empty(info.shape, info.dtype)
        for entry in entries_by_tensor[info.name]:
            array, index = arrays[entry.layer, entry.weight]
            if index is not None:
                array = array[index]
            if entry.expert is not None:
                array = array[entry.expert]
            without_padding = tuple(map(slice, entry.layout.shape))
            entry.layout.insert(tensor, _on_host(array)[without_padding])
        return tensor

    infos = []
    for name, tensor_entries in entries_by_tensor.items():
        entry = tensor_entries[0]
        array, _ = arrays[entry.layer, entry.weight]
        infos.append(TensorInfo(name=name, shape=entry.layout.file_shape, dtype=array.dtype))
    if jax.process_index() == 0:
        write_tensors(folder, infos, load, max_file_bytes)
    else:
        for info in infos:
            load(info)


def _on_host(array: jax.Array) -> Numbers:
    """The whole array, in every process."""
    if array.is_fully_addressable:
        return np.asarray(array)
    from jax.experimental import multihost_utils

    whole: Numbers = np.asarray(multihost_utils.process_allgather(array, tiled=True))
    return whole


def _entries_by_weight(config: ModelConfig) -> EntriesByWeight:
    by_weight: dict[WeightKey, list[Entry]] = defaultdict(list)
    for entry in entries(config):
        by_weight[entry.layer, entry.weight].append(entry)
    return by_weight


def _find(name: str, files: Mapping[str, Numbers]) -> Numbers | None:
    """A tensor under its name, or under a variant of it."""
    for variant in (name, VISION_PREFIX + name, name.removeprefix(GPT2_PREFIX)):
        if variant in files:
            return files[variant]
    return None


def _check(
    folder: Path, shapes: Mapping[str, tuple[int, ...]], tensors: Mapping[str, Numbers]
) -> None:
    """Refuse files that lack a tensor, or have it in another shape."""
    missing = [name for name in shapes if name not in tensors]
    problems = []
    if missing:
        names = ", ".join(missing[:3])
        if len(missing) > 3:
            names += ", ..."
        problems.append(f"{folder} lacks {len(missing)} of {len(shapes)} tensors: {names}.")
    for name, tensor in tensors.items():
        if tensor.shape != shapes[name]:
            problems.append(f"{folder}: {name} is {tensor.shape}, the config says {shapes[name]}.")
    if problems:
        raise BadFile(*problems[:4])


def _sharded(
    info: ArrayInfo,
    by_layer: Sequence[Sequence[Entry]],
    tensors: Mapping[str, Numbers],
    table: Table,
    dtype: Any,
) -> jax.Array:
    """One array of the tree, from the entries of each of its layers."""
    shards: dict[str, Numbers] = {}  # a shard of several chips is read once

    def shard(index: Any) -> Numbers:
        key = str(index)
        if key in shards:
            return shards[key]
        spans = [range(n)[dim] for dim, n in zip(index, info.shape, strict=True)]
        array = np.zeros([len(span) for span in spans], dtype)
        if info.layers:
            for i, layer in enumerate(spans[0]):
                _fill(array[i], by_layer[layer], tensors, index[1:])
        else:
            _fill(array, by_layer[0], tensors, index)
        shards[key] = array
        return array

    spec = divisible_spec(info.spec(table), info.shape, table.mesh.jax_mesh)
    sharding = NamedSharding(table.mesh.jax_mesh, spec)
    return jax.make_array_from_callback(info.shape, sharding, shard)


def _fill(
    shard: Numbers, entries: Sequence[Entry], tensors: Mapping[str, Numbers], index: Index
) -> None:
    """Fill a shard of one layer's weight with its elements at `index`; padding stays 0."""
    if entries[0].expert is None:
        _copy(shard, entries[0], tensors, index)
        return
    for i, expert in enumerate(range(len(entries))[index[0]]):
        _copy(shard[i], entries[expert], tensors, index[1:])


def _copy(shard: Numbers, entry: Entry, tensors: Mapping[str, Numbers], index: Index) -> None:
    elements = entry.layout.extract(tensors[entry.tensor])[index]
    shard[tuple(map(slice, elements.shape))] = elements
