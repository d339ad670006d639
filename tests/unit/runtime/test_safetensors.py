"""The format of published weights, written and read."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from shardwise.errors import BadFile
from shardwise.runtime.safetensors import INDEX, TensorInfo, tensors, write

ARRAYS = {
    "a.weight": np.arange(12, dtype=np.float32).reshape(3, 4),
    "b.weight": np.arange(8).astype(ml_dtypes.bfloat16),
    "c": np.array(7, dtype=np.int64),
}
INFOS = [TensorInfo(name=n, shape=a.shape, dtype=a.dtype) for n, a in ARRAYS.items()]


def save(folder: Path, largest: int = 1000) -> None:
    write(folder, INFOS, lambda info: ARRAYS[info.name], largest)


def test_one_file(tmp_path: Path) -> None:
    save(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]
    found = tensors(tmp_path)
    assert set(found) == set(ARRAYS)
    for name, array in ARRAYS.items():
        assert found[name].dtype == array.dtype
        assert np.array_equal(found[name], array)


def test_bytes_are_those_of_the_format(tmp_path: Path) -> None:
    save(tmp_path)
    raw = (tmp_path / "model.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    assert length % 8 == 0
    assert header["b.weight"] == {"dtype": "BF16", "shape": [8], "data_offsets": [48, 64]}
    assert raw[8 + length : 8 + length + 48] == ARRAYS["a.weight"].tobytes()
    assert len(raw) == 8 + length + 48 + 16 + 8


def test_more_files_with_an_index(tmp_path: Path) -> None:
    save(tmp_path, largest=48)
    names = sorted(p.name for p in tmp_path.glob("*.safetensors"))
    assert names == ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    index = json.loads((tmp_path / INDEX).read_text("utf-8"))
    assert index["weight_map"] == {"a.weight": names[0], "b.weight": names[1], "c": names[1]}
    assert index["metadata"] == {"total_size": 48 + 16 + 8}
    assert np.array_equal(tensors(tmp_path)["b.weight"], ARRAYS["b.weight"])


def test_no_folder_and_no_files(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="is no folder"):
        tensors(tmp_path / "none")
    with pytest.raises(BadFile, match=r"holds no \*\.safetensors"):
        tensors(tmp_path)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda raw: raw[:4], "cut off"),
        (lambda raw: raw[:20], "cut off"),
        (lambda raw: raw[:-8], "c is cut off"),
        (lambda raw: raw.replace(b'"F32"', b'"F31"'), "has dtype F31"),
        (lambda raw: raw.replace(b'{"__', b"{'__"), "no JSON"),
    ],
)
def test_damaged_files(tmp_path: Path, damage, told: str) -> None:
    save(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(BadFile, match=told):
        tensors(tmp_path)
