"""Reader and writer of published weights: safetensors files with the names of a model's family.

The shards of an array are read one after the other, layer by layer, so host memory holds only the
shard that is being read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
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
from shardwise.runtime.weights.descriptions import (
    ArrayInfo,
    Tree,
    describe,
    layer_stacks,
    map_infos,
)
from shardwise.runtime.weights.safetensors import TensorInfo, read_tensors, write_tensors

Numbers = NDArray[Any]
Index = tuple[slice, ...]
WeightKey = tuple[int | None, str]  # (layer or None, name of the weight)
# For each layer of an array, the tensor of its weight in the files, or the tensors of its experts.
EntriesByLayer = Sequence[Sequence[Entry]]

# Prefixes of the language model's tensors in files of models with other towers, such as vision;
# the second one takes the place of TEXT_PREFIX.
TOWER_PREFIX = "language_model."
NESTED_PREFIX = "model.language_model."
TEXT_PREFIX = "model."
GPT2_PREFIX = "transformer."  # prefix that early files of GPT-2 leave out
LANGUAGE_PREFIXES = (TOWER_PREFIX, NESTED_PREFIX, "lm_head.")


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
    return sharded_weights(find_tensors(folder, config), config, table, dtype)


def sharded_weights(
    tensors: Mapping[str, Numbers], config: ModelConfig, table: Table, dtype: Any
) -> Tree:
    """Make the arrays of a model from its published tensors, sharded by the table.

    Args:
        tensors: name in `tensor_names` -> numbers; each is looked up when it is copied.
        config: the model.
        table: sharding rules on the mesh.
        dtype: dtype of the arrays.

    Raises:
        BadInput: the tensor names of the family are unknown.
    """

    def array(info: ArrayInfo, by_layer: EntriesByLayer) -> jax.Array:
        return sharded_array(info, by_layer, tensors, table, dtype)

    return map_infos(array, describe(config, table), entries_by_layer(config))


def find_tensors(folder: Path, config: ModelConfig) -> dict[str, Numbers]:
    """Find the tensors of a model in a folder: name in `tensor_names` -> memory-mapped array.

    Raises:
        BadFile: files are missing or unreadable, or belong to another model.
        BadInput: the tensor names of the family are unknown.
    """
    shapes = {entry.tensor: entry.layout.file_shape for entry in entries(config)}
    files = read_tensors(folder)
    tensors = {}
    for name in shapes:
        file_name = _name_in(files, name)
        if file_name is not None:
            tensors[name] = files[file_name]
    _check(folder, shapes, tensors)
    return tensors


def other_towers(folder: Path, config: ModelConfig) -> dict[str, Numbers]:
    """Return the tensors in a folder that are not of its language model, such as those of vision.

    Raises:
        BadFile: files are missing or unreadable.
    """
    files = read_tensors(folder)
    language = {_name_in(files, entry.tensor) for entry in entries(config)}
    return {
        name: tensor
        for name, tensor in files.items()
        if name not in language and not name.startswith(LANGUAGE_PREFIXES)
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedModel:
    """The tensors of a model in its published format.

    Args:
        entries: name of a tensor in the files -> the weights in it.
        towers: tensors that are not trained, with their names and numbers.
    """

    entries: Mapping[str, Sequence[Entry]]
    towers: Mapping[str, Numbers]

    def infos(self, dtype_of: Callable[[Entry], Any]) -> list[TensorInfo]:
        """Return names, shapes and dtypes of all tensors; `dtype_of` is that of trained weights."""
        infos = []
        for name, (entry, *_) in self.entries.items():
            shape = entry.layout.file_shape
            infos.append(TensorInfo(name=name, shape=shape, dtype=dtype_of(entry)))
        for name, tensor in self.towers.items():
            infos.append(TensorInfo(name=name, shape=tensor.shape, dtype=tensor.dtype))
        return infos


def published_model(config: ModelConfig, source: Path | None, with_towers: bool) -> PublishedModel:
    """Return the tensors of a model, with the names that they have in `source`.

    Args:
        source: folder of the published model that a run started from; None for none.
        with_towers: whether `source` has tensors besides those of the language model.

    Raises:
        BadFile: files of `source` are missing or unreadable.
        BadInput: the tensor names of the family are unknown.
    """
    files: Mapping[str, Numbers] = {}
    towers: Mapping[str, Numbers] = {}
    if source is not None:
        files = read_tensors(source)
    if source is not None and with_towers:
        towers = other_towers(source, config)
    by_name: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries(config):
        by_name[_name_in(files, entry.tensor) or entry.tensor].append(entry)
    return PublishedModel(entries=by_name, towers=towers)


def save_weights(
    folder: Path,
    config: ModelConfig,
    weights: Tree,
    max_file_bytes: int = 5_000_000_000,
    model: PublishedModel | None = None,
) -> None:
    """Write weights in the format in which the model's family publishes them, without a cast.

    With several processes all of them have to call this function: they gather one layer at a time,
    and process 0 writes it.

    Args:
        folder: folder of the files; it is created if it is missing.
        weights: a tree like that of `load_weights`.
        max_file_bytes: size limit of a file.
        model: names of the tensors, and tensors that are not trained; None for those of the family.

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
    model = model or published_model(config, None, with_towers=False)

    def load(info: TensorInfo) -> Numbers:
        if info.name in model.towers:
            return model.towers[info.name]
        tensor = np.empty(info.shape, info.dtype)
        for entry in model.entries[info.name]:
            array, index = arrays[entry.layer, entry.weight]
            if index is not None:
                array = array[index]
            if entry.expert is not None:
                array = array[entry.expert]
            without_padding = tuple(map(slice, entry.layout.shape))
            entry.layout.insert(tensor, _on_host(array)[without_padding])
        return tensor

    def dtype_of(entry: Entry) -> Any:
        array, _ = arrays[entry.layer, entry.weight]
        return array.dtype

    infos = model.infos(dtype_of)
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


def entries_by_layer(config: ModelConfig) -> Tree:
    """The tensors of each array of the tree that `describe` returns, as `EntriesByLayer`."""
    by_weight: dict[WeightKey, list[Entry]] = defaultdict(list)
    for entry in entries(config):
        by_weight[entry.layer, entry.weight].append(entry)
    infos = describe(config)
    layers = []
    for layer_stack, weights in zip(layer_stacks(config), infos["layers"], strict=True):
        layers.append(
            {
                weight: [by_weight[layer, info.weight.name] for layer in layer_stack.layers]
                for weight, info in weights.items()
            }
        )
    outer = {weight: [by_weight[None, info.weight.name]] for weight, info in infos["outer"].items()}
    return {"layers": layers, "outer": outer}


def _name_in(files: Collection[str], name: str) -> str | None:
    """Return the name that a tensor has in files, which may be a variant; None if it is missing."""
    variants = (
        name,
        TOWER_PREFIX + name,
        NESTED_PREFIX + name.removeprefix(TEXT_PREFIX),
        name.removeprefix(GPT2_PREFIX),
    )
    for variant in variants:
        if variant in files:
            return variant
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


def sharded_array(
    info: ArrayInfo,
    by_layer: EntriesByLayer,
    tensors: Mapping[str, Numbers],
    table: Table,
    dtype: Any,
) -> jax.Array:
    """Build one sharded array of the tree from the tensors of each of its layers.

    What the model does not have, at the ends of dims and of layers, is padding and 0.

    Args:
        tensors: name in `tensor_names` -> numbers.
        dtype: dtype of the array.
    """
    shards: dict[str, Numbers] = {}  # chips with the same shard share one read

    def shard(index: Any) -> Numbers:
        key = str(index)
        if key in shards:
            return shards[key]
        ranges = [range(size)[part] for part, size in zip(index, info.shape, strict=True)]
        array = np.zeros([len(elements) for elements in ranges], dtype)
        if info.n_layers:
            for i, layer in enumerate(ranges[0]):
                if layer < len(by_layer):
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
