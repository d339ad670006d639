"""Machines as people write them, and as this package does."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwise.errors import BadInput, BadShape
from shardwise.hardware import chip_names, find_chip, parse_chip, parse_system
from shardwise.hardware.catalog import catalog_chip
from shardwise.hardware.chip import get
from shardwise.hardware.machine_names import split_name
from tests.host import CHIP

MACHINES = [
    # Google Cloud's names count TensorCores: of v2, v3, v4, v5p and 7x a chip has two.
    ("v5e-16", "v5e:4x4"),
    ("v5litepod-16", "v5e:4x4"),
    ("v6e-8", "v6e:2x4"),
    ("v3-8", "v3:2x2"),
    ("v4-8", "v4:2x2x1"),
    ("v4-256", "v4:4x4x8"),
    ("v4-512", "v4:4x8x8"),
    ("v5p-128", "v5p:4x4x4"),
    ("tpu7x-128", "7x:4x4x4"),
    ("TPU v5e-16", "v5e:4x4"),
    ("8xh100", "h100:8"),
    ("8x h100", "h100:8"),
    ("8 x H100", "h100:8"),
    ("8×H100", "h100:8"),
    ("8 H100", "h100:8"),
    ("h100x8", "h100:8"),
    ("h100-8", "h100:8"),
    ("h100 x8", "h100:8"),
    ("H100:8", "h100:8"),
    ("h100 80gb:8", "h100:8"),
    ("8x NVIDIA A100-SXM4-40GB", "a100-40g:8"),
    ("8x4090", "rtx-4090:8"),
    ("a100x8,node=200GB/s", "a100:8,node=200GB/s"),
]


@pytest.mark.parametrize(("text", "name"), MACHINES)
def test_machines(text: str, name: str) -> None:
    assert parse_system(text).name == name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),  # as nvidia-smi writes them
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA A100-SXM4-40GB", "a100-40g"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("Tesla V100-SXM2-32GB", "v100"),
        ("AMD Instinct MI300X", "mi300x"),
        ("h100 80gb", "h100"),
        ("h100_80GiB", "h100"),
        ("h200-141gb", "h200"),
        ("Google Cloud TPU v5p", "v5p"),
    ],
)
def test_chips(text: str, name: str) -> None:
    assert find_chip(text).name == name
    assert split_name(text) == (text, "")


@pytest.mark.parametrize("name", chip_names())
def test_the_names_of_the_catalog_are_chips_without_a_size(name: str) -> None:
    chip = catalog_chip(name)
    for text in (name, *chip.aliases, chip.title):
        assert split_name(text) == (text, "")
        if text != chip.title:
            assert find_chip(text).name == name


@pytest.mark.parametrize("text", ["h100-80", "a100-40", "a100 80"])
def test_gigabytes_are_no_number_of_chips(text: str) -> None:
    with pytest.raises(BadShape, match="gigabytes"):
        parse_system(text)


@pytest.mark.parametrize(
    "text", ["24090", "h100-80gb", "", "8x", "x8", "-8", "h100--8", "v5e-0", "::"]
)
def test_what_is_no_machine_is_read_as_a_chip(text: str) -> None:
    assert split_name(text) == (text, "")


def test_a_chip_without_links_is_alone() -> None:
    assert parse_system("m1:1").n_chips == 1
    with pytest.raises(BadShape, match="m1:2 has no links"):
        parse_system("m1:2")


def test_a_measured_machine_has_no_more_devices_than_were_measured(tmp_path: Path) -> None:
    file = tmp_path / "host.toml"
    file.write_text(CHIP)
    assert parse_system(f"{file}:64").n_chips == 64
    with pytest.raises(BadShape, match=r"was measured as: 64\. shardwise hw measure 128 -o"):
        parse_system(f"{file}:128")
    network = '[scale_out]\negress = { value = "1e9 B/s", source = "tests", as_of = "2026-11" }\n'
    file.write_text(CHIP + network)
    assert parse_system(f"{file}:128").n_chips == 128


def test_the_figures_of_the_book() -> None:
    system = parse_system("v5e:4x4,figures=book,price=1USD/h")
    assert system.name == "v5e:4x4,figures=book,price=1USD/h"
    quotes = find_chip("v5e").quotes["book"]
    assert quotes
    for path, figure in quotes.items():
        if not path.startswith("price"):
            assert get(system.chip, path) == figure.value
    assert parse_system(system.name) == system
    with pytest.raises(BadInput, match="the book states no figures of m1"):
        parse_chip("m1,figures=book")
    with pytest.raises(BadInput, match="figures=book"):
        parse_chip("v5e,figures=datasheet")
