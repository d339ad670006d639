"""Weights out of the files that a model is published in, and back into such files.

Each chip's part of each array is read by itself, layer by layer: what is in memory of a checkpoint
is the part that is being made.
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
from shardwise.runtime.weights.descriptions import ArrayInfo, Tree, describe, places
from shardwise.runtime.weights.safetensors import TensorInfo, tensors, write

Numbers = NDArray[Any]
Index = tuple[slice, ...]
# (layer or None, our name) -> the tensor that it is in, or those of its experts.
Where = Mapping[tuple[int | None, str], Sequence[Entry]]

# Before the names in files of models that also see; what early files of GPT-2 leave out.
BEFORE, LEFT_OUT = "language_model.", "transformer."


def load_weights(folder: Path, config: ModelConfig, table: Table, dtype: Any) -> Tree:
    """The weights of a published model, each chip's part where the table puts it.

    Args:
        folder: with the *.safetensors files.
        config: the model, of a family whose tensors are known.
        table: rules on the mesh.
        dtype: to hold them in.

    Raises:
        BadFile: files that are missing, unreadable, or of another model.
        BadInput: a family whose tensors are not known.
    """
    where, files = _where(config), tensors(folder)
    used = {entry.tensor: entry.layout.file_shape for found in where.values() for entry in found}
    held = {name: found for name in used if (found := _find(name, files)) is not None}
    _check(folder, used, held)

    def array(info: ArrayInfo, layers: Sequence[int | None]) -> jax.Array:
        found = [where[layer, info.weight.name] for layer in layers]
        return _laid_out(info, found, held, table, dtype)

    infos = describe(config, table)
    return {
        "layers": [
            {name: array(info, place.layers) for name, info in layer.items()}
            for place, layer in zip(places(config), infos["layers"], strict=True)
        ],
        "outer": {name: array(info, (None,)) for name, info in infos["outer"].items()},
    }


def save_weights(
    folder: Path, config: ModelConfig, weights: Tree, largest: int = 5_000_000_000
) -> None:
    """Write weights as the family of the model publishes them, in the dtype that they have.

    Several processes call it together: the first one writes, and gets from the others what it does
    not have, one layer at a time.

    Args:
        folder: is made where there is none.
        config: the model.
        weights: as of `load_weights`.
        largest: bytes of one file.

    Raises:
        BadInput: a family whose tensors are not known.
    """
    ours: dict[tuple[int | None, str], tuple[jax.Array, int | None]] = {}
    for place, layer in zip(places(config), weights["layers"], strict=True):
        for name, array in layer.items():
            ours |= {(n, name): (array, i) for i, n in enumerate(place.layers)}
    ours |= {(None, name): (array, None) for name, array in weights["outer"].items()}
    made: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries(config):
        made[entry.tensor].append(entry)

    def numbers(info: TensorInfo) -> Numbers:
        held = np.empty(info.shape, info.dtype)
        for entry in made[info.name]:
            array, i = ours[entry.layer, entry.weight]
            one = array if i is None else array[i]
            one = one if entry.expert is None else one[entry.expert]
            cut = tuple(map(slice, entry.layout.shape))  # without what fills up a vocabulary
            entry.layout.insert(held, _on_host(one)[cut])
        return held

    infos = [
        TensorInfo(
            name=name,
            shape=parts[0].layout.file_shape,
            dtype=ours[parts[0].layer, parts[0].weight][0].dtype,
        )
        for name, parts in made.items()
    ]
    if jax.process_index() == 0:
        write(folder, infos, numbers, largest)
    else:
        for info in infos:
            numbers(info)


def _on_host(array: jax.Array) -> Numbers:
    """All of an array, in every process."""
    if array.is_fully_addressable:
        return np.asarray(array)
    from jax.experimental import multihost_utils

    whole: Numbers = np.asarray(multihost_utils.process_allgather(array, tiled=True))
    return whole


def _where(config: ModelConfig) -> Where:
    found: dict[tuple[int | None, str], list[Entry]] = defaultdict(list)
    for entry in entries(config):
        found[entry.layer, entry.weight].append(entry)
    return found


def _find(name: str, files: Mapping[str, Numbers]) -> Numbers | None:
    """A tensor under its name, or under one of the other ways to write it."""
    for written in (name, BEFORE + name, name.removeprefix(LEFT_OUT)):
        if written in files:
            return files[written]
    return None


def _check(folder: Path, used: Mapping[str, tuple[int, ...]], held: Mapping[str, Numbers]) -> None:
    """Refuse files that lack a tensor, or have it in another shape."""
    missing = [name for name in used if name not in held]
    problems = []
    if missing:
        more = ", ..." if len(missing) > 3 else "."
        problems.append(
            f"{folder} lacks {len(missing)} of {len(used)} tensors: {', '.join(missing[:3])}{more}"
        )
    for name, array in held.items():
        if array.shape != used[name]:
            problems.append(f"{folder}: {name} is {array.shape}, the config says {used[name]}.")
    if problems:
        raise BadFile(*problems[:4])


def _laid_out(
    info: ArrayInfo,
    found: Sequence[Sequence[Entry]],
    held: Mapping[str, Numbers],
    table: Table,
    dtype: Any,
) -> jax.Array:
    """One array of the tree: `found` has the tensors of each of its layers."""
    made: dict[str, Numbers] = {}  # a part that several chips hold is read once

    def part(index: Any) -> Numbers:
        if str(index) not in made:
            spans = [range(*s.indices(n)) for s, n in zip(index, info.shape, strict=True)]
            out = np.zeros([len(span) for span in spans], dtype)
            layers = spans[0] if info.layers else range(1)
            for i, layer in enumerate(layers):
                one, rest = (out[i], index[1:]) if info.layers else (out, index)
                _fill(one, found[layer], held, rest)
            made[str(index)] = out
        return made[str(index)]

    spec = divisible_spec(info.spec(table), info.shape, table.mesh.jax_mesh)
    sharding = NamedSharding(table.mesh.jax_mesh, spec)
    return jax.make_array_from_callback(info.shape, sharding, part)


def _fill(
    out: Numbers, entries: Sequence[Entry], held: Mapping[str, Numbers], index: Index
) -> None:
    """Our weight of one layer, of which `index` is wanted; zeros beyond what the file has."""
    if entries[0].expert is not None:
        experts = range(*index[0].indices(len(entries)))
        for i, expert in enumerate(experts):
            _copy(out[i], entries[expert], held, index[1:])
    else:
        _copy(out, entries[0], held, index)


def _copy(out: Numbers, entry: Entry, held: Mapping[str, Numbers], index: Index) -> None:
    part = entry.layout.extract(held[entry.tensor])[index]
    out[tuple(map(slice, part.shape))] = part
