"""Reader and writer of published weights: safetensors files with the names of a model's family.

The shards of an array are read one after the other, layer by layer, so host memory holds only the
shard that is being read.
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
# The tensor of each weight in the files, or the tensors of its experts.
EntriesByWeight = Mapping[WeightKey, Sequence[Entry]]

VISION_PREFIX = "language_model."  # prefix of tensor names in files of models with vision
GPT2_PREFIX = "transformer."  # prefix that early files of GPT-2 leave out


def load_weights(folder: Path, config: ModelConfig, table: Table, dtype: Any) -> Tree:
    """Load the weights of a published model, sharded by the table.

    Args:
        folder: folder with the *.safetensors files.
        config: the model; the tensor names of its family have to be known.
        table: sharding rules on the mesh.
        dtype: dtype of the loaded arrays.

    Raises:
        BadFile: files are missing or unreadable, or belong to another model.
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
    """Write weights in the format in which the model's family publishes them, without a cast.

    With several processes all of them have to call this function: they gather one layer at a time,
    and process 0 writes it.

    Args:
        folder: folder of the files; it is created if it is missing.
        config: the model.
        weights: a tree like that of `load_weights`.
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
    """The whole array as NumPy array, in every process."""
    if array.is_fully_addressable:
        return np.asarray(array)
    from jax.experimental import multihost_utils

    whole: Numbers = np.asarray(multihost_utils.process_allgather(array, tiled=True))
    return whole


def _entries_by_weight(config: ModelConfig) -> EntriesByWeight:
    """Group the tensors of a model's files by the weight that they hold."""
    by_weight: dict[WeightKey, list[Entry]] = defaultdict(list)
    for entry in entries(config):
        by_weight[entry.layer, entry.weight].append(entry)
    return by_weight


def _find(name: str, files: Mapping[str, Numbers]) -> Numbers | None:
    """Find a tensor by its name or by a variant of the name that some files use."""
    for variant in (name, VISION_PREFIX + name, name.removeprefix(GPT2_PREFIX)):
        if variant in files:
            return files[variant]
    return None


def _check(
    folder: Path, shapes: Mapping[str, tuple[int, ...]], tensors: Mapping[str, Numbers]
) -> None:
    """Raise BadFile if files lack a tensor, or have one with another shape than the config says."""
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
    """Build one sharded array of the tree from the tensors of each of its layers."""
    shards: dict[str, Numbers] = {}  # chips with the same shard share one read

    def shard(index: Any) -> Numbers:
        key = str(index)
        if key in shards:
            return shards[key]
        ranges = [range(size)[part] for part, size in zip(index, info.shape, strict=True)]
        array = np.zeros([len(elements) for elements in ranges], dtype)
        if info.n_layers:
            for i, layer in enumerate(ranges[0]):
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
    """Copy the elements of one layer's weight at `index` to `shard`; padding stays 0."""
    if entries[0].expert is None:
        _copy(shard, entries[0], tensors, index)
        return
    for i, expert in enumerate(range(len(entries))[index[0]]):
        _copy(shard[i], entries[expert], tensors, index[1:])


def _copy(shard: Numbers, entry: Entry, tensors: Mapping[str, Numbers], index: Index) -> None:
    """Copy the elements of one tensor at `index` to `shard`."""
    elements = entry.layout.extract(tensors[entry.tensor])[index]
    shard[tuple(map(slice, elements.shape))] = elements
