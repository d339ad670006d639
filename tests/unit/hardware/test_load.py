"""A user's own TOML: read like the catalog's, and refused with every problem at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwise.errors import BadFile
from shardwise.hardware import load_chip, parse_chip, parse_system

GOOD = """
name = "mine"
title = "My chip"
vendor = "me"
kind = "tpu"
as_of = "2026-01"

[peak]
bf16 = { value = "100 TFLOP/s", source = "my bench", as_of = "2026-01", confirmed = false }

[hbm]
capacity = { value = "16 GiB", source = "my bench", as_of = "2026-01", also = [["16 GB", "ad"]] }

[ici]
axes = { value = 2, source = "my bench", as_of = "2026-01" }
wrap = { value = "length_16", source = "my bench", as_of = "2026-01" }
pod = { value = "16x16", source = "my bench", as_of = "2026-01" }

[quoted.book]
source = "some book"
as_of = "2025-02"
hbm.capacity = "17 GB"
"""


def write(folder: Path, text: str, name: str = "mine.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def problems(folder: Path, text: str) -> tuple[str, ...]:
    path = write(folder, text)
    with pytest.raises(BadFile) as error:
        load_chip(path)
    for problem in error.value.problems:
        assert str(path) in problem
    return error.value.problems


def test_a_chip_of_ones_own(tmp_path: Path) -> None:
    chip = load_chip(write(tmp_path, GOOD))
    assert (chip.name, chip.peak("bf16"), chip.hbm_bytes) == ("mine", 1e14, 16 * 2**30)
    assert chip.figures["peak.bf16"].confirmed is False
    assert chip.figures["hbm.capacity"].also == ((16e9, "ad"),)
    assert chip.quoted("book").hbm_bytes == 17e9
    assert chip.node is None


def test_a_system_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, GOOD)
    # No slices are listed, so any shape inside the pod is allowed.
    system = parse_system("./mine.toml:3x5,hbm=1GB")
    assert (system.name, system.n_chips) == ("./mine.toml:3x5,hbm=1GB", 15)
    assert parse_system(system.name) == system
    assert parse_chip("./mine.toml").name == "mine"


def test_figures_may_be_tables_of_their_own(tmp_path: Path) -> None:
    table = '[hbm.bandwidth]\nvalue = "1 TB/s"\nsource = "my bench"\nas_of = "2026-01"\n'
    assert load_chip(write(tmp_path, GOOD + table)).hbm_bytes_per_s == 1e12


ABOUT = 'name = "x"\ntitle = "x"\nvendor = "x"\nkind = "gpu"\nas_of = "2026-01"\n'
TOLD = 'source = "my bench", as_of = "2026-01"'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "name is missing"),
        (ABOUT.replace("gpu", "npu"), 'kind is "npu". One of: tpu, gpu, other, cpu.'),
        (
            ABOUT + 'market = "car"\n',
            'market is "car". One of: data center, workstation, desktop.',
        ),
        (ABOUT.replace("2026-01", "2026-13"), 'as_of is "2026-13". Write a month: YYYY-MM.'),
        (ABOUT + "nmae = 1", 'unknown key "nmae". Close: "name"'),
        (ABOUT + 'aliases = "y"', "aliases is not a list of names"),
        (ABOUT + "note = 1", "note is not text"),
        (ABOUT + "hbm = 3", "hbm is not a table"),
        (ABOUT + 'hbm.capacity = "16 GB"', "hbm.capacity has no source"),
        (ABOUT + 'hbm.capacity = { value = "16 GB", as_of = "2026-01" }', "has no source. Name"),
        (ABOUT + 'hbm.capacity = { value = "16 GB", source = "ad" }', "capacity has no date"),
        (ABOUT + f"hbm.capacity = {{ {TOLD} }}", "hbm.capacity has no value"),
        (ABOUT + f"hbm.capacity = {{ value = 16, {TOLD} }}", "hbm.capacity is 16: no unit"),
        (ABOUT + f'hbm.capacity = {{ value = "16", {TOLD} }}', "hbm.capacity 16 has no unit"),
        (ABOUT + f'hbm.capacity = {{ value = "0 GB", {TOLD} }}', 'hbm.capacity "0 GB" is zero'),
        (ABOUT + f'hbm.size = {{ value = "1 GB", {TOLD} }}', 'unknown figure "hbm.size"'),
        (ABOUT + f'peak.bf61 = {{ value = "1 FLOP/s", {TOLD} }}', 'dtype "bf61" in [peak]. Close'),
        (ABOUT + f'hbm.capacity = {{ value = "1 GB", {TOLD}, soruce = "a" }}', 'Close: "source"'),
        (ABOUT + f'hbm.capacity = {{ value = "1 GB", {TOLD}, confirmed = 1 }}', "true or false"),
        (ABOUT + f'hbm.capacity = {{ value = "1 GB", {TOLD}, also = "2 GB" }}', "also is a list"),
        (ABOUT + f'hbm.capacity = {{ value = "1 GB", {TOLD}, also = [["2", "a"]] }}', "no unit"),
        (ABOUT + f"node.gpus = {{ value = 0, {TOLD} }}", "Write a whole number from 1"),
        (ABOUT + f"node.gpus = {{ value = true, {TOLD} }}", "Write a whole number from 1"),
        (ABOUT + f'node.egress = {{ value = "1 GB/s", {TOLD} }}', "node.gpus is missing"),
        (ABOUT + f'node.in_network_reduction = {{ value = "x", {TOLD} }}', "true or false"),
        (ABOUT + f"ici.slices = {{ value = [2], {TOLD} }}", "not a list of shapes"),
        (ABOUT + f'ici.wrap = {{ value = "all", {TOLD} }}', 'ici.wrap is "all". One of: cubes_of'),
        (ABOUT + f"ici.pod = {{ value = 16, {TOLD} }}", "Write a shape in quotes"),
        (ABOUT + "quoted = 1", "quoted is not a table"),
        (ABOUT + "[quoted.book]\nhbm.capacity = '1 GB'", "hbm.capacity has no source"),
        (ABOUT + "[quoted.book]\nhmb.capacity = '1 GB'", 'unknown key "hmb" in quoted.book'),
        (GOOD.replace("16x16", "16x16x16"), "ici.pod has 16x16x16, and ici.axes is 2"),
        (GOOD + 'node.egress = "1 GB/s"', "quoted.book has node.egress, and there is no [node]"),
    ],
)
def test_what_is_wrong_with_a_file(tmp_path: Path, text: str, told: str) -> None:
    assert any(told in problem for problem in problems(tmp_path, text)), problems(tmp_path, text)


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    text = 'name = "x"\nkind = "npu"\nhbm.capacity = "16 GB"\npeak.bf16 = { value = 1 }\n'
    told = problems(tmp_path, text)
    assert len(told) == 8
    assert len(set(told)) == 8


@pytest.mark.parametrize("raw", [b"name = ", b"\xff\xfe", b"= 1", b"a = 1\na = 2"])
def test_a_file_that_is_not_toml(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(raw)
    with pytest.raises(BadFile, match="cannot be read as TOML"):
        load_chip(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=r"no file .*none\.toml"):
        parse_system(f"{tmp_path}/none.toml:4x4")


def test_a_folder_is_no_chip(tmp_path: Path) -> None:
    (tmp_path / "dir.toml").mkdir()
    with pytest.raises(BadFile, match="is a folder"):
        load_chip(tmp_path / "dir.toml")


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(BadFile, match="Permission denied"):
        load_chip(tmp_path / "mine.toml")
