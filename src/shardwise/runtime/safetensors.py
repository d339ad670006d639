"""Files of tensors as Hugging Face publishes them: eight bytes with the length of a header, the
header in JSON (name -> dtype, shape, bytes from .. to), the numbers.

Source: the format as described with the safetensors library. Files are mapped into memory, so only
what is read of a tensor is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from shardwise.errors import BadFile

DTYPES: Mapping[str, Any] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
    "I8": np.int8,
    "U8": np.uint8,
    "BOOL": np.bool_,
}
NAMES = {np.dtype(kind): name for name, kind in DTYPES.items()}
SUFFIX = ".safetensors"
INDEX = "model.safetensors.index.json"
METADATA = "__metadata__"  # an entry of the header that is no tensor

Numbers = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """A tensor that is to be written."""

    name: str
    shape: tuple[int, ...]
    dtype: Any

    @property
    def bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


def tensors(folder: Path) -> dict[str, Numbers]:
    """Every tensor of the files in a folder, by name, none of them read yet.

    Raises:
        BadFile: no such folder, no such files in it, or a file that is not of this format.
    """
    if not folder.is_dir():
        raise BadFile(f"{folder} is no folder.")
    paths = sorted(folder.glob(f"*{SUFFIX}"))
    if not paths:
        raise BadFile(f"{folder} holds no *{SUFFIX} files; those of other formats are not read.")
    return {name: array for path in paths for name, array in _of_file(path)}


def _of_file(path: Path) -> Iterator[tuple[str, Numbers]]:
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > size - 8:
            raise BadFile(f"{path}: {size} bytes, its header is cut off.")
        try:
            header = json.loads(file.read(length))
        except ValueError as error:
            raise BadFile(f"{path}: its header is no JSON.") from error
    raw = np.memmap(path, np.uint8, "r")[8 + length :]
    for name, told in header.items():
        if name == METADATA:
            continue
        start, stop = told["data_offsets"]
        if told["dtype"] not in DTYPES or stop > raw.size:
            what = "is cut off" if stop > raw.size else f"has dtype {told['dtype']}"
            raise BadFile(f"{path}: {name} {what}. Read: {', '.join(DTYPES)}.")
        yield name, raw[start:stop].view(DTYPES[told["dtype"]]).reshape(told["shape"])


def write(
    folder: Path,
    infos: Sequence[TensorInfo],
    made: Callable[[TensorInfo], Numbers],
    largest: int = 5_000_000_000,
) -> None:
    """Write tensors one after the other, in files of at most `largest` bytes of numbers.

    Args:
        folder: is made where there is none.
        infos: the tensors.
        made: gives the numbers of one of them, when it is written.
        largest: a larger tensor has a file of its own.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parts = _parts(infos, largest)
    names = [f"model-{i:05}-of-{len(parts):05}{SUFFIX}" for i in range(1, len(parts) + 1)]
    names = names if len(parts) > 1 else [f"model{SUFFIX}"]
    for name, part in zip(names, parts, strict=True):
        _write_file(folder / name, part, made)
    if len(parts) > 1:
        where = {t.name: name for name, part in zip(names, parts, strict=True) for t in part}
        index = {"metadata": {"total_size": sum(t.bytes for t in infos)}, "weight_map": where}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", "utf-8")


def _parts(infos: Sequence[TensorInfo], largest: int) -> list[list[TensorInfo]]:
    parts: list[list[TensorInfo]] = [[]]
    for info in infos:
        if parts[-1] and sum(t.bytes for t in parts[-1]) + info.bytes > largest:
            parts.append([])
        parts[-1].append(info)
    return parts


def _write_file(
    path: Path, infos: Sequence[TensorInfo], made: Callable[[TensorInfo], Numbers]
) -> None:
    header: dict[str, Any] = {METADATA: {"format": "pt"}}  # what readers look for
    at = 0
    for info in infos:
        name = NAMES[np.dtype(info.dtype)]
        offsets = [at, at + info.bytes]
        header[info.name] = {"dtype": name, "shape": info.shape, "data_offsets": offsets}
        at += info.bytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # numbers begin at a multiple of eight
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for info in infos:
            numbers = np.ascontiguousarray(made(info), info.dtype)
            file.write(numbers.view(np.uint8).data if numbers.ndim else numbers.tobytes())
