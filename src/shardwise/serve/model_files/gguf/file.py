"""A GGUF file: keys with values, and tensors that stay on the disk until they are read.

Source: the description of the format in ggml, docs/gguf.md; read by the package `gguf`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwise.errors import BadFile, MissingExtra

ARCHITECTURE = "general.architecture"
_REQUIRED: Any = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufFile:
    """The contents of a GGUF file.

    Args:
        values: key -> value.
        tensors: name -> `gguf.ReaderTensor`, whose data is memory-mapped.
    """

    path: Path
    values: Mapping[str, Any]
    tensors: Mapping[str, Any]

    @property
    def architecture(self) -> str:
        """Architecture by its name in llama.cpp, which begins the keys of the model."""
        return str(self.value(ARCHITECTURE))

    def value(self, key: str, default: Any = _REQUIRED) -> Any:
        """The value of a key.

        Raises:
            BadFile: the file has no such key, and there is no default.
        """
        if key in self.values:
            return self.values[key]
        if default is _REQUIRED:
            raise BadFile(f"{self.path} has no key {key}: it is not a whole model.")
        return default

    def of_model(self, key: str, default: Any = _REQUIRED) -> Any:
        """The value of a key of the model, named without its architecture."""
        return self.value(f"{self.architecture}.{key}", default)

    def of_tokenizer(self, key: str, default: Any = _REQUIRED) -> Any:
        """The value of a key of the tokenizer, named without its prefix."""
        return self.value(f"tokenizer.ggml.{key}", default)

    def shape(self, name: str) -> tuple[int, ...] | None:
        """Shape of a tensor in NumPy's order; None if there is no such tensor."""
        tensor = self.tensors.get(name)
        if tensor is None:
            return None
        return tuple(int(size) for size in reversed(tensor.shape))


def open_gguf(path: Path) -> GgufFile:
    """Open a GGUF file.

    Raises:
        BadFile: it is missing, unreadable, cut off or one part of several.
        MissingExtra: the package `gguf` is not installed.
    """
    try:
        import gguf  # noqa: F401
    except ImportError:
        raise MissingExtra(
            f"{path} needs the package gguf: pip install 'shardwise[serve]'"
        ) from None
    if not path.is_file():
        raise BadFile(f"no file {path}.")
    try:
        reader = _reader(path)
        values = {name: field.contents() for name, field in reader.fields.items()}
    except (ValueError, IndexError, KeyError, OSError, OverflowError, MemoryError) as error:
        reason = str(error).splitlines()[0][:80] if str(error) else type(error).__name__
        raise BadFile(f"{path} is not a whole GGUF file: {reason}.") from None
    if values.get("split.count", 1) > 1:
        raise BadFile(
            f"{path} is one of {values['split.count']} parts; llama-gguf-split --merge joins them."
        )
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    return GgufFile(path=path, values=values, tensors=tensors)


def _reader(path: Path) -> Any:
    """Read the keys of a file and the places of its tensors.

    `GGUFReader` slices its memory map for every token of a vocabulary, which is three times as fast
    on a plain array.
    """
    import numpy as np
    from gguf import GGUFReader

    class Reader(GGUFReader):
        @property
        def data(self) -> Any:
            return self._data

        @data.setter
        def data(self, memory_map: Any) -> None:
            self._data = memory_map.view(np.ndarray)

    return Reader(str(path))


def float_of(value: float) -> float:
    """A number of 32 bits as the decimal that it was rounded from: 1e-05, not 9.99999975e-06."""
    import numpy as np

    return float(str(np.float32(value)))
