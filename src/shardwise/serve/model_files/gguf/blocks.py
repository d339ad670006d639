"""Blocks of quantized weights in GGUF files, kept as they are in an engine's groups.

A block has 32 neighbouring inputs of one output. Q4_0 and Q8_0 have a scale of 16 bits, Q4_1 a
minimum too; a number is its scale times an integer, plus the minimum. In a group integers have no
sign, so that the block's smallest integer is in the minimum: a product with a power of 2, which is
exact. Source: ggml, src/ggml-common.h.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.models.tensor_names import Entry
from shardwise.runtime.serving.engine_state import EngineState
from shardwise.runtime.weights.descriptions import ArrayInfo
from shardwise.runtime.weights.published_weights import EntriesByLayer, sharded_array
from shardwise.runtime.weights.quantized import GROUP_SCALE_DTYPE, UNSIGNED, Grouped
from shardwise.serve.model_files.gguf.tensors import GgufTensors

Numbers = NDArray[Any]

BLOCK = 32  # numbers
# Types of blocks that fit in the groups of an engine, by the dtype of its weights.
FITTING = {"int4": ("Q4_0", "Q4_1"), "int8": ("Q4_0", "Q4_1", "Q8_0")}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBlocks:
    """The blocks in the tensors of a file, for an engine."""

    tensors: GgufTensors
    engine: EngineState

    def groups(
        self, info: ArrayInfo, dims: tuple[int, ...], by_layer: EntriesByLayer
    ) -> Grouped | None:
        """The blocks of a matrix as groups, or parts of them where chips share a block.

        None if the engine's groups are others.
        """
        size = self._group_size(info, dims, by_layer)
        if not size:
            return None
        values = self._part(0, size, info, by_layer, UNSIGNED[self.engine.job.weights])
        weight = replace(info.weight, shape=_divided(info.weight.shape, dims[-1], size))
        info = replace(info, weight=weight)
        by_layer = [[_divided_entry(entry, dims[-1], size)] for (entry,) in by_layer]
        scale = self._part(1, size, info, by_layer, GROUP_SCALE_DTYPE)
        minimum = self._part(2, size, info, by_layer, GROUP_SCALE_DTYPE)
        return Grouped(values, scale, minimum)

    def _group_size(
        self, info: ArrayInfo, dims: tuple[int, ...], by_layer: EntriesByLayer
    ) -> int | None:
        """Elements of a group, if the blocks of all layers consist of groups; None if not."""
        if not dims or self.engine.group != BLOCK or any(len(layer) > 1 for layer in by_layer):
            return None
        kinds = {self.tensors.kind(entry.tensor) for (entry,) in by_layer}
        extents = self.engine.extents(info, dims)
        size = extents[dims[-1]]
        if math.prod(extents) != size or not kinds <= {*FITTING[self.engine.job.weights]}:
            return None
        return size

    def _part(
        self, part: int, size: int, info: ArrayInfo, by_layer: EntriesByLayer, dtype: Any
    ) -> Any:
        blocks = BlockParts(tensors=self.tensors, part=part, groups=BLOCK // size)
        return sharded_array(info, by_layer, blocks, self.engine.table, dtype)


def _divided_entry(entry: Entry, dim: int, size: int) -> Entry:
    """The entry of a matrix with one number for each `size` of the entry's along a dim."""
    layout = entry.layout
    layout = replace(
        layout,
        file_shape=_divided(layout.file_shape, -1, size),
        view_shape=_divided(layout.view_shape, -1, size),
        shape=_divided(layout.shape, dim, size),
    )
    return replace(entry, layout=layout)


def _divided(shape: Sequence[int], dim: int, size: int) -> tuple[int, ...]:
    """A shape with one number for each `size` along a dim."""
    divided = list(shape)
    divided[dim] //= size
    return tuple(divided)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockParts(Mapping[str, Numbers]):
    """One part of the blocks of tensors.

    Args:
        part: 0 for integers without sign, 1 for scales, 2 for minima.
        groups: groups of a block, which have the same scale and minimum.
    """

    tensors: GgufTensors
    part: int
    groups: int

    def __len__(self) -> int:
        return len(self.tensors)

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __getitem__(self, name: str) -> Numbers:
        data = self.tensors.stored(name)
        numbers = read_blocks(data, self.tensors.kind(name))[self.part]
        if self.part:
            numbers = numbers.repeat(self.groups, axis=1)
        return np.take(numbers, self.tensors.row_order(name), axis=0)


def read_blocks(data: Numbers, kind: str) -> tuple[Numbers, Numbers, Numbers]:
    """Integers [rows, columns], scales and minima [rows, blocks] of a matrix.

    Args:
        data: bytes of each row.
        kind: type of the blocks, one of `FITTING`.
    """
    rows = len(data)
    n_scales = 1 + (kind == "Q4_1")
    bytes_of_block = 2 * n_scales + (32 if kind == "Q8_0" else 16)
    blocks = data.reshape(rows, -1, bytes_of_block)
    scales = np.ascontiguousarray(blocks[..., : 2 * n_scales]).view(np.float16)
    scale = scales[..., 0]
    codes = blocks[..., 2 * n_scales :]
    if kind == "Q8_0":
        values = codes ^ 0x80  # from -128..127 to 0..255
        minimum = scale * np.float16(-128)
    else:
        # The first half of a block is in the lower four bits of its bytes.
        values = np.concatenate([codes & 0xF, codes >> 4], axis=-1)
        minimum = scales[..., 1] if kind == "Q4_1" else scale * np.float16(-8)
    return values.reshape(rows, -1), scale, minimum
