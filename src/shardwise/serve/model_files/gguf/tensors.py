"""The tensors of a GGUF file under the names and in the form that they have in Hugging Face files.

A tensor is dequantized when it is looked up, so memory holds one of them in fp32.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.errors import BadFile
from shardwise.models import ModelConfig
from shardwise.models.tensor_names import entries
from shardwise.serve.model_files.gguf.architectures import Architecture, architecture_of
from shardwise.serve.model_files.gguf.file import GgufFile

Numbers = NDArray[Any]


def open_tensors(file: GgufFile, config: ModelConfig) -> GgufTensors:
    """The tensors of a model.

    Raises:
        BadFile: tensors are missing, of another shape, or quantized in an unknown way.
    """
    tensors = GgufTensors(
        file=file,
        config=config,
        architecture=architecture_of(file),
        shapes={entry.tensor: entry.layout.file_shape for entry in entries(config)},
    )
    tensors.check()
    return tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufTensors(Mapping[str, Numbers]):
    """Tensors by their names in Hugging Face files, in fp32.

    Args:
        shapes: name -> shape of every tensor of the model.
    """

    file: GgufFile
    config: ModelConfig
    architecture: Architecture
    shapes: Mapping[str, tuple[int, ...]]

    def __len__(self) -> int:
        return len(self.shapes)

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __getitem__(self, name: str) -> Numbers:
        from gguf.quants import dequantize

        tensor = self._tensor(name)
        numbers: Numbers = dequantize(tensor.data, tensor.tensor_type).astype(
            np.float32, copy=False
        )
        if self.architecture.norm_plus_one and name.endswith("norm.weight"):
            numbers = numbers - 1
        return np.take(numbers, self.row_order(name), axis=0)

    def stored(self, name: str) -> Numbers:
        """The bytes of each row of a quantized matrix, as they are in the file."""
        data: Numbers = self._tensor(name).data
        return data

    def kind(self, name: str) -> str:
        """Type of a tensor in the file, such as `Q4_1`."""
        return str(self._tensor(name).tensor_type.name)

    def _tensor(self, name: str) -> Any:
        return self.file.tensors[self.architecture.tensor_name(name)]

    def row_order(self, name: str) -> Numbers:
        """Indices of the rows in the file, in the order of Hugging Face.

        For the files of Llama, each head of queries and keys has its rotary positions in pairs;
        in those of Hugging Face they are two halves.
        """
        n_heads = 0
        attention = self.config.groups[0].layer.attention
        if self.architecture.interleaved and attention:
            if ".q_proj." in name:
                n_heads = attention.n_heads
            elif ".k_proj." in name:
                n_heads = attention.n_kv_heads
        n_rows = self.shapes[name][0]
        rows = np.arange(n_rows)
        if not n_heads:
            return rows
        pairs = rows.reshape(n_heads, n_rows // n_heads // 2, 2)
        return pairs.swapaxes(1, 2).reshape(n_rows)

    def check(self) -> None:
        """Raise BadFile if a tensor is missing, of another shape, or of an unknown type."""
        problems = []
        for name, shape in self.shapes.items():
            gguf_name = self.architecture.tensor_name(name)
            actual = self.file.shape(gguf_name)
            if actual is None:
                problems.append(f"{self.file.path} lacks the tensor {gguf_name}.")
            elif actual != shape:
                problems.append(f"{self.file.path}: {gguf_name} is {actual}, its keys say {shape}.")
            elif not _is_readable(self.file.tensors[gguf_name]):
                kind = self.file.tensors[gguf_name].tensor_type.name
                problems.append(
                    f"{self.file.path}: {gguf_name} is of type {kind}, which the package gguf "
                    "does not dequantize."
                )
        if problems:
            raise BadFile(*problems[:4])


def _is_readable(tensor: Any) -> bool:
    """Whether the package `gguf` dequantizes a tensor; its first row is tried."""
    from gguf.quants import dequantize

    try:
        dequantize(tensor.data[:1], tensor.tensor_type)
    except NotImplementedError:
        return False
    return True
