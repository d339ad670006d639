"""Files of tensors as Hugging Face publishes them: eight bytes with the length of a header, the
header in JSON (name -> dtype, shape, bytes from .. to), the numbers.

Source: the format as described with the safetensors library. Files are mapped into memory, so only
what is read of a tensor is loaded. Where there is an index, it says which file a tensor is in.
"""

from __future__ import annotations

import json
import os
import re
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
ALONE = f"model{SUFFIX}"  # the file of a model that has one; Hugging Face reads it before an index
UNDONE = ".undone"  # behind the name of a file that is still being written
OURS = re.compile(r"model(-\d+-of-\d+)?\.safetensors(\.undone)?")

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
        BadFile: no such folder, no such files in it, a file that is not of this format, or two
            files that have the same tensor where no index says which is meant.
    """
    if not folder.is_dir():
        raise BadFile(f"{folder} is no folder.")
    if (folder / INDEX).exists():
        return _indexed(folder)
    paths = sorted(folder.glob(f"*{SUFFIX}"))
    if not paths:
        raise BadFile(f"{folder} holds no *{SUFFIX} files; those of other formats are not read.")
    found: dict[str, Numbers] = {}
    within: dict[str, str] = {}
    for path in paths:
        for name, array in _of_file(path):
            if name in found:
                raise BadFile(
                    f"{folder}: {name} is in {within[name]} and in {path.name}, and no {INDEX} "
                    "says which is meant: remove what is left of another model."
                )
            found[name], within[name] = array, path.name
    return found


def _indexed(folder: Path) -> dict[str, Numbers]:
    """The tensors that the index of a folder names, out of the files that it names."""
    where = _weight_map(folder)
    files = {file: dict(_of_file(folder / file)) for file in _there(folder, where)}
    for name, file in where.items():
        if name not in files[file]:
            raise BadFile(f"{folder}: {INDEX} says that {name} is in {file}, and it is not.")
    alone = folder / ALONE
    if ALONE not in files and alone.exists():
        both = next((name for name, _ in _of_file(alone) if name in where), "")
        if both:
            raise BadFile(
                f"{folder}: {both} is in {ALONE} and in {where[both]}, of which {INDEX} names the "
                "second and other readers take the first: remove what is left of another model."
            )
    return {name: files[file][name] for name, file in where.items()}


def _there(folder: Path, where: Mapping[str, str]) -> list[str]:
    """The files of an index, all of which have to be there."""
    names = sorted(set(where.values()))
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise BadFile(f"{folder} lacks {len(missing)} files of {INDEX}: {', '.join(missing[:3])}.")
    return names


def _weight_map(folder: Path) -> dict[str, str]:
    """Tensor -> file, as the index of a folder says it."""
    path = folder / INDEX
    try:
        where = json.loads(path.read_text("utf-8"))["weight_map"]
        return {str(name): str(file) for name, file in where.items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadFile(f"{path} has no weight_map: it is no index of tensors.") from error


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

    They take the place of a model that is there already once all of them are complete: what breaks
    off before leaves that one as it was. One process calls it.

    Args:
        folder: is made where there is none.
        infos: the tensors.
        made: gives the numbers of one of them, when it is written.
        largest: a larger tensor has a file of its own.
    """
    folder.mkdir(parents=True, exist_ok=True)
    parts = _parts(infos, largest)
    names = [f"model-{i:05}-of-{len(parts):05}{SUFFIX}" for i in range(1, len(parts) + 1)]
    names = names if len(parts) > 1 else [ALONE]
    index: dict[str, Any] | None = None
    if len(parts) > 1:
        where = {t.name: name for name, part in zip(names, parts, strict=True) for t in part}
        index = {"metadata": {"total_size": sum(t.bytes for t in infos)}, "weight_map": where}
    try:
        for name, part in zip(names, parts, strict=True):
            _write_file(folder / (name + UNDONE), part, made)
    except BaseException:
        for name in names:
            (folder / (name + UNDONE)).unlink(missing_ok=True)
        raise
    _replace(folder, names, index)


def _replace(folder: Path, names: Sequence[str], index: Mapping[str, Any] | None) -> None:
    """Remove a model that was there, and give the new files their names.

    In this order no moment shows tensors of both: what breaks off here lacks some, which is told.
    """
    for name in _earlier(folder) - {name + UNDONE for name in names}:
        (folder / name).unlink(missing_ok=True)
    for name in names:
        (folder / (name + UNDONE)).rename(folder / name)
    if index is not None:
        undone = folder / (INDEX + UNDONE)
        undone.write_text(json.dumps(index, indent=2) + "\n", "utf-8")
        undone.rename(folder / INDEX)


def _earlier(folder: Path) -> set[str]:
    """Names of what other exports left: files with the names of one, an index and what it names."""
    found = {path.name for path in folder.iterdir() if OURS.fullmatch(path.name)}
    found |= {INDEX + UNDONE}
    if (folder / INDEX).exists():
        try:
            named = set(_weight_map(folder).values())
        except BadFile:
            named = set()
        here = {name for name in named if Path(name).name == name and name.endswith(SUFFIX)}
        found |= {INDEX} | here
    return found


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
        file.flush()
        os.fsync(file.fileno())  # what it takes the place of is removed next
