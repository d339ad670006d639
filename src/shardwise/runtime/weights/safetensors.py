"""Reader and writer of safetensors files.

A file has eight bytes with the length of the header, the header in JSON (name of a tensor -> dtype,
shape, data offsets), and the numbers. Files are memory-mapped, so only those parts of a tensor are
loaded that are used. A model of several files has an index, which maps tensors to files.

Source: the format description of the safetensors library.
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
METADATA = "__metadata__"  # an entry of the header that is not a tensor
SINGLE_FILE = f"model{SUFFIX}"  # holds a whole model; Hugging Face prefers it to an index
PARTIAL = ".undone"  # suffix of a file that is still being written
MODEL_FILE = re.compile(r"model(-\d+-of-\d+)?\.safetensors(\.undone)?")

Numbers = NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """Name, shape and dtype of a tensor to write."""

    name: str
    shape: tuple[int, ...]
    dtype: Any

    @property
    def bytes(self) -> int:
        """Size of the tensor in the file."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


def read_tensors(folder: Path) -> dict[str, Numbers]:
    """Read the tensors of a folder: name -> memory-mapped array.

    Raises:
        BadFile: the folder is missing, has no safetensors files or a malformed one, or two files
            have the same tensor and no index says which one counts.
    """
    if not folder.is_dir():
        raise BadFile(f"{folder} is not a folder.")
    if (folder / INDEX).exists():
        return _indexed(folder)
    paths = sorted(folder.glob(f"*{SUFFIX}"))
    if not paths:
        raise BadFile(
            f"{folder} has no *{SUFFIX} files; other formats are not supported. transformers "
            "converts them: from_pretrained(FOLDER), then save_pretrained(NEW_FOLDER)."
        )
    tensors: dict[str, Numbers] = {}
    file_of: dict[str, str] = {}
    for path in paths:
        for name, array in _file_tensors(path):
            if name in tensors:
                raise BadFile(
                    f"{folder}: {name} is in {file_of[name]} and in {path.name}, and no {INDEX} "
                    "names one of them: remove files that are left of another model."
                )
            tensors[name] = array
            file_of[name] = path.name
    return tensors


def _indexed(folder: Path) -> dict[str, Numbers]:
    """Read the tensors that the index of a folder lists, from the files that it names."""
    file_of = _weight_map(folder)
    files = {file: dict(_file_tensors(folder / file)) for file in _existing(folder, file_of)}
    for name, file in file_of.items():
        if name not in files[file]:
            raise BadFile(f"{folder}: {name} is not in {file}, which {INDEX} names.")
    single_file = folder / SINGLE_FILE
    if SINGLE_FILE not in files and single_file.exists():
        duplicate = next((name for name, _ in _file_tensors(single_file) if name in file_of), "")
        if duplicate:
            raise BadFile(
                f"{folder}: {duplicate} is in {SINGLE_FILE} and in {file_of[duplicate]}. {INDEX} "
                "names the second, other readers take the first: remove files that are left of "
                "another model."
            )
    return {name: files[file][name] for name, file in file_of.items()}


def _existing(folder: Path, file_of: Mapping[str, str]) -> list[str]:
    """Names of the files of an index; raises BadFile if one does not exist."""
    names = sorted(set(file_of.values()))
    missing = [name for name in names if not (folder / name).is_file()]
    if missing:
        raise BadFile(f"{folder} lacks {len(missing)} files of {INDEX}: {', '.join(missing[:3])}.")
    return names


def _weight_map(folder: Path) -> dict[str, str]:
    """Tensor -> file, from the index of a folder."""
    path = folder / INDEX
    try:
        weight_map = json.loads(path.read_text("utf-8"))["weight_map"]
        return {str(name): str(file) for name, file in weight_map.items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise BadFile(f"{path} has no weight_map: it is not an index of tensors.") from error


def _file_tensors(path: Path) -> Iterator[tuple[str, Numbers]]:
    """Names and memory-mapped arrays of the tensors in one file."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > size - 8:
            raise BadFile(f"{path}: its header is cut off after {size} bytes.")
        try:
            header = json.loads(file.read(length))
        except ValueError as error:
            raise BadFile(f"{path}: its header is not JSON.") from error
    data = np.memmap(path, np.uint8, "r")[8 + length :]
    for name, entry in header.items():
        if name == METADATA:
            continue
        start, stop = entry["data_offsets"]
        if stop > data.size:
            raise BadFile(f"{path}: {name} is cut off.")
        if entry["dtype"] not in DTYPES:
            supported = ", ".join(DTYPES)
            raise BadFile(f"{path}: {name} has dtype {entry['dtype']}; supported are {supported}.")
        yield name, data[start:stop].view(DTYPES[entry["dtype"]]).reshape(entry["shape"])


def write_tensors(
    folder: Path,
    infos: Sequence[TensorInfo],
    load: Callable[[TensorInfo], Numbers],
    max_file_bytes: int = 5_000_000_000,
) -> None:
    """Write tensors one after the other, in files of at most `max_file_bytes` of numbers.

    The new files replace a model in the folder once all of them are complete; an error before that
    leaves the old model unchanged. Only one process may call this function.

    Args:
        folder: folder of the files; it is created if it is missing.
        load: function that returns the numbers of a tensor; called when the tensor is written.
        max_file_bytes: size limit of a file; a tensor that is larger gets a file by itself.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = _files(infos, max_file_bytes)
    names = [f"model-{i:05}-of-{len(files):05}{SUFFIX}" for i in range(1, len(files) + 1)]
    index: dict[str, Any] | None = None
    if len(files) == 1:
        names = [SINGLE_FILE]
    else:
        weight_map: dict[str, str] = {}
        for name, file in zip(names, files, strict=True):
            weight_map |= dict.fromkeys((info.name for info in file), name)
        total_size = sum(info.bytes for info in infos)
        index = {"metadata": {"total_size": total_size}, "weight_map": weight_map}
    try:
        for name, file in zip(names, files, strict=True):
            _write_file(folder / (name + PARTIAL), file, load)
    except BaseException:
        for name in names:
            (folder / (name + PARTIAL)).unlink(missing_ok=True)
        raise
    _replace(folder, names, index)


def _replace(folder: Path, names: Sequence[str], index: Mapping[str, Any] | None) -> None:
    """Remove an earlier model, then give the new files their final names.

    In this order the folder never has tensors of both models: an interruption leaves too few
    tensors, which the reader reports.
    """
    for name in _earlier_files(folder) - {name + PARTIAL for name in names}:
        (folder / name).unlink(missing_ok=True)
    for name in names:
        (folder / (name + PARTIAL)).rename(folder / name)
    if index is not None:
        partial = folder / (INDEX + PARTIAL)
        partial.write_text(json.dumps(index, indent=2) + "\n", "utf-8")
        partial.rename(folder / INDEX)


def _earlier_files(folder: Path) -> set[str]:
    """Names of an earlier model's files: model files, an index, and the files in the index."""
    names = {path.name for path in folder.iterdir() if MODEL_FILE.fullmatch(path.name)}
    names.add(INDEX + PARTIAL)
    if not (folder / INDEX).exists():
        return names
    names.add(INDEX)
    try:
        indexed = set(_weight_map(folder).values())
    except BadFile:
        indexed = set()
    for name in indexed:
        if Path(name).name == name and name.endswith(SUFFIX):
            names.add(name)
    return names


def _files(infos: Sequence[TensorInfo], max_file_bytes: int) -> list[list[TensorInfo]]:
    """Distribute the tensors over files of at most `max_file_bytes`, in their order."""
    files: list[list[TensorInfo]] = [[]]
    for info in infos:
        file_bytes = sum(member.bytes for member in files[-1])
        if files[-1] and file_bytes + info.bytes > max_file_bytes:
            files.append([])
        files[-1].append(info)
    return files


def _write_file(
    path: Path, infos: Sequence[TensorInfo], load: Callable[[TensorInfo], Numbers]
) -> None:
    """Write one file; it is on the disk when this function returns."""
    header: dict[str, Any] = {METADATA: {"format": "pt"}}  # required by some readers
    start = 0
    for info in infos:
        stop = start + info.bytes
        dtype = NAMES[np.dtype(info.dtype)]
        header[info.name] = {"dtype": dtype, "shape": info.shape, "data_offsets": [start, stop]}
        start = stop
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # numbers start at a multiple of eight
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for info in infos:
            numbers = np.ascontiguousarray(load(info), info.dtype)
            file.write(numbers.reshape(-1).view(np.uint8).data)
        file.flush()
        os.fsync(file.fileno())  # because the files that it replaces are removed next
