"""The format of published weights, written and read."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from shardwise.errors import BadFile
from shardwise.runtime.weights.safetensors import INDEX, TensorInfo, read_tensors, write_tensors

ARRAYS = {
    "a.weight": np.arange(12, dtype=np.float32).reshape(3, 4),
    "b.weight": np.arange(8).astype(ml_dtypes.bfloat16),
    "c": np.array(7, dtype=np.int64),
}
INFOS = [TensorInfo(name=n, shape=a.shape, dtype=a.dtype) for n, a in ARRAYS.items()]


def save(folder: Path, largest: int = 1000) -> None:
    write_tensors(folder, INFOS, lambda info: ARRAYS[info.name], largest)


def test_one_file(tmp_path: Path) -> None:
    save(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]
    found = read_tensors(tmp_path)
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
    assert np.array_equal(read_tensors(tmp_path)["b.weight"], ARRAYS["b.weight"])


def test_no_folder_and_no_files(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="is not a folder"):
        read_tensors(tmp_path / "none")
    with pytest.raises(BadFile, match=r"has no \*\.safetensors"):
        read_tensors(tmp_path)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda raw: raw[:4], "cut off"),
        (lambda raw: raw[:20], "cut off"),
        (lambda raw: raw[:-8], "c is cut off"),
        (lambda raw: raw.replace(b'"F32"', b'"F31"'), "has dtype F31"),
        (lambda raw: raw.replace(b'{"__', b"{'__"), "not JSON"),
    ],
)
def test_damaged_files(tmp_path: Path, damage, told: str) -> None:
    save(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(BadFile, match=told):
        read_tensors(tmp_path)


def test_an_export_takes_the_place_of_another(tmp_path: Path) -> None:
    """Fewer files than before, then more: what is there is always one model."""
    other = {f"old.{i}": np.full(12, i, np.float32) for i in range(4)}
    olds = [TensorInfo(name=n, shape=a.shape, dtype=a.dtype) for n, a in other.items()]
    (tmp_path / "adapter_model.safetensors.txt").touch()
    write_tensors(tmp_path, olds, lambda info: other[info.name], 48)
    save(tmp_path)
    kept = {"adapter_model.safetensors.txt"}
    assert {p.name for p in tmp_path.iterdir()} == {"model.safetensors", *kept}
    assert set(read_tensors(tmp_path)) == set(ARRAYS)
    write_tensors(tmp_path, olds, lambda info: other[info.name], 48)
    four = {f"model-0000{i}-of-00004.safetensors" for i in range(1, 5)}
    assert {p.name for p in tmp_path.iterdir()} == {*four, INDEX, *kept}
    assert set(read_tensors(tmp_path)) == set(other)
    save(tmp_path, largest=48)
    assert len(list(tmp_path.glob("*.safetensors"))) == 2
    assert set(read_tensors(tmp_path)) == set(ARRAYS)


def test_files_that_a_stale_index_names_are_replaced_too(tmp_path: Path) -> None:
    save(tmp_path, largest=48)
    beside = tmp_path.with_name("beside.safetensors")
    beside.touch()
    first, last = sorted(tmp_path.glob("*.safetensors"))
    first.rename(tmp_path / "part.safetensors")
    where = {"a.weight": "part.safetensors", "b.weight": last.name, "c": f"../{beside.name}"}
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": where}))
    save(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]
    assert beside.exists(), "nothing outside the folder is removed"


def test_what_breaks_off_leaves_the_model_that_was_there(tmp_path: Path) -> None:
    save(tmp_path, largest=48)
    names = {p.name for p in tmp_path.iterdir()}

    def broken(info: TensorInfo) -> np.ndarray:
        if info.name == "c":
            raise OSError("no space")
        return np.zeros(info.shape, info.dtype)

    for largest in (48, 1000):
        with pytest.raises(OSError, match="no space"):
            write_tensors(tmp_path, INFOS, broken, largest)
        assert {p.name for p in tmp_path.iterdir()} == names
        assert np.array_equal(read_tensors(tmp_path)["a.weight"], ARRAYS["a.weight"])


def test_a_file_may_be_replaced_by_what_is_read_of_it(tmp_path: Path) -> None:
    """Its numbers are read while the new file is written."""
    save(tmp_path)
    held = read_tensors(tmp_path)
    write_tensors(tmp_path, INFOS, lambda info: held[info.name])
    for name, array in ARRAYS.items():
        assert np.array_equal(read_tensors(tmp_path)[name], array)


def test_the_index_says_where_a_tensor_is(tmp_path: Path) -> None:
    save(tmp_path, largest=48)
    stale = np.zeros(8, ml_dtypes.bfloat16)
    write_tensors(tmp_path / "old", [INFOS[1]], lambda info: stale)
    (tmp_path / "old" / "model.safetensors").rename(tmp_path / "zz.safetensors")
    assert np.array_equal(read_tensors(tmp_path)["b.weight"], ARRAYS["b.weight"])
    (tmp_path / INDEX).unlink()
    told = r"b.weight is in model-00002-of-00002.safetensors and in zz.safetensors"
    with pytest.raises(BadFile, match=told):
        read_tensors(tmp_path)


def test_a_model_in_one_file_beside_an_index_is_refused(tmp_path: Path) -> None:
    """Hugging Face reads `model.safetensors` then, whatever the index says."""
    save(tmp_path, largest=48)
    write_tensors(tmp_path / "old", INFOS, lambda info: ARRAYS[info.name])
    (tmp_path / "old" / "model.safetensors").rename(tmp_path / "model.safetensors")
    with pytest.raises(BadFile, match=r"a.weight is in model.safetensors and in model-00001"):
        read_tensors(tmp_path)


@pytest.mark.parametrize(
    ("index", "told"),
    [
        ("{", "has no weight_map"),
        ("[]", "has no weight_map"),
        ('{"weight_map": ["a"]}', "has no weight_map"),
        ('{"weight_map": {"a.weight": "x.safetensors"}}', "lacks 1 files of .*: x.safetensors"),
        ('{"weight_map": {"d": "model.safetensors"}}', "d is not in model.safetensors"),
    ],
)
def test_an_index_that_is_not_of_the_files(tmp_path: Path, index: str, told: str) -> None:
    save(tmp_path)
    (tmp_path / INDEX).write_text(index)
    with pytest.raises(BadFile, match=told):
        read_tensors(tmp_path)
