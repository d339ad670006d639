"""What the compiler is told of each machine."""

from __future__ import annotations

import re

import pytest

from shardwise.check.compiling.gpu_description import capability_of, gpu_config
from shardwise.check.compiling.targets import NOT_CHECKED, target_of
from shardwise.hardware import chip_names, find_chip, legal_slices, parse_system

TPUS = ("v2", "v3", "v4", "v5e", "v5p", "v6e", "7x")


def smallest(name: str) -> str:
    chip = find_chip(name)
    if chip.ici:
        return f"{name}:{legal_slices(chip)[0]}"
    return f"{name}:8" if chip.node or chip.kind != "gpu" else f"{name}:1"


@pytest.mark.parametrize("name", chip_names())
def test_every_chip_of_the_catalog_has_a_target_or_says_why_not(name: str) -> None:
    system = parse_system(smallest(name))
    target = target_of(system)
    assert target.n_devices == system.n_chips * target.devices_per_chip
    if target.platform == "cpu" and name != "cpu":
        assert target.note.endswith(NOT_CHECKED)
        assert target.topology == {}
    else:
        assert not target.note


def test_all_tpus_and_the_gpus_of_today_have_their_own_compiler() -> None:
    found = {name: target_of(parse_system(smallest(name))).platform for name in chip_names()}
    assert all(found[name] == "tpu" for name in TPUS)
    gpus = ("a100", "h100", "h200", "b200", "gb200", "b300", "gb300", "gh200", "l4", "rtx-5090")
    assert all(found[name] == "gpu" for name in gpus)
    # CUDA 13 begins at compute capability 7.5; the others are no chips of XLA's compilers.
    assert {found[name] for name in ("v100", "mi300x", "m1", "groq", "wse3", "cpu")} == {"cpu"}


@pytest.mark.parametrize(
    ("name", "topology"),
    [
        ("v5e:16x16", {"topology_name": "v5e:16x16", "wrap": [True, True, False]}),
        ("v5e:16x8", {"topology_name": "v5e:16x8", "wrap": [True, False, False]}),
        (
            "v5e:4x4*2",
            {"topology_name": "v5e:4x4", "wrap": [False, False, False], "num_slices": 2},
        ),
        ("v5p:8x8x8", {"topology_name": "v5p:8x8x8", "wrap": [True, True, True]}),
        (
            "v5p:1x2x2",
            {
                "topology_name": "v5p:1x2x2",
                "wrap": [False, False, False],
                "chips_per_host_bounds": [1, 2, 2],
            },
        ),
        (
            "v6e:1x1",
            {
                "topology_name": "v6e:1x1",
                "wrap": [False, False, False],
                "chips_per_host_bounds": [1, 1, 1],
            },
        ),
        (
            "v4:2x2x1",
            {
                "topology_name": "v4:2x2x1",
                "wrap": [False, False, False],
                "chip_config_name": "megacore",
            },
        ),
        ("7x:4x4x4", {"topology_name": "tpu7x:4x4x4", "wrap": [True, True, True]}),
    ],
)
def test_tpu_topologies(name: str, topology: dict[str, object]) -> None:
    assert target_of(parse_system(name)).topology == topology


@pytest.mark.parametrize(
    ("name", "topology", "grid"),
    [
        ("h100:64", "8x1x8", (8, 8)),
        ("h100:4", "1x1x4", (1, 4)),
        ("gb200:72", "1x18x4", (1, 72)),
        ("gb200:144", "2x18x4", (2, 72)),
    ],
)
def test_gpu_topologies(name: str, topology: str, grid: tuple[int, ...]) -> None:
    target = target_of(parse_system(name))
    assert target.topology["topology"] == topology
    assert target.grid == grid


@pytest.mark.parametrize("name", TPUS)
def test_the_clock_of_the_cycles_is_the_published_one(name: str) -> None:
    chip = find_chip(name)
    target = target_of(parse_system(smallest(name)))
    assert target.clock_hz is not None
    assert target.flops_per_cycle is not None
    # One device at that clock does its share of the published peak.
    per_chip = target.clock_hz * target.flops_per_cycle * target.devices_per_chip
    assert per_chip == pytest.approx(chip.peak("bf16"), rel=1e-12)
    if chip.clock_hz:
        # Where a clock is published it agrees: sources round clocks and peaks to 2 or 3 digits.
        assert target.clock_hz == pytest.approx(chip.clock_hz, rel=0.01)


@pytest.mark.parametrize("name", TPUS)
def test_the_memory_of_a_device(name: str) -> None:
    chip = find_chip(name)
    target = target_of(parse_system(smallest(name)))
    assert target.memory_bytes == chip.need("hbm.usable") / target.devices_per_chip
    assert target.options == {}


def test_ones_own_memory_is_told_to_the_compiler() -> None:
    target = target_of(parse_system("7x:2x2x1,hbm=64GiB"))
    assert target.memory_bytes == 32 * 2**30
    assert target.options == {"xla_tpu_max_hbm_size_mib": str(32 * 1024)}


def test_the_description_of_a_gpu_is_made_of_its_figures() -> None:
    chip = find_chip("h100")
    text = gpu_config(chip)
    assert isinstance(text, str)
    fields = dict(re.findall(r"(\w+): (\S+)", text))
    assert int(fields["core_count"]) == chip.n_sms
    assert int(fields["memory_bandwidth"]) == chip.hbm_bytes_per_s
    assert int(fields["device_memory_size"]) == chip.hbm_bytes
    assert float(fields["clock_rate_ghz"]) * 1e9 == chip.clock_hz
    assert "cuda_compute_capability { major: 9 minor: 0 " in text
    assert int(fields["shared_memory_per_core"]) == 228 * 1024


@pytest.mark.parametrize("name", [n for n in chip_names() if capability_of(n)])
def test_every_gpu_with_a_capability_can_be_described(name: str) -> None:
    assert isinstance(gpu_config(find_chip(name)), str)


def test_missing_figures_are_named() -> None:
    assert gpu_config(find_chip("mi300x")) == ["the compute capability"]
