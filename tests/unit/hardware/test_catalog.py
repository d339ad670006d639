"""The catalog: every figure has a source and a date, and what is unknown stays unknown."""

from __future__ import annotations

import re

import pytest

from shardwise.errors import BadInput, UnknownName
from shardwise.hardware import Chip, catalog_chip, chip_names, find_chip

TPUS = {"v2", "v3", "v4", "v5e", "v5p", "v6e", "7x"}
# Joined by links of their own, or by the PCIe of a host.
LINKED = {
    "v100", "a100-40g", "a100", "h20", "h100", "h100-nvl", "h800", "h200", "h200-nvl", "b200",
    "b300", "gb200", "gb300", "mi250x", "mi300x", "mi325x", "mi350x", "mi355x",
}  # fmt: skip
GEFORCE = {
    "rtx-3070", "rtx-3080", "rtx-3080-ti", "rtx-3090", "rtx-3090-ti", "rtx-4070-ti", "rtx-4080",
    "rtx-4090", "rtx-5090",
}  # fmt: skip
CARDS = GEFORCE | {
    "a10", "a10g", "a30", "a40", "a100-pcie", "h100-pcie", "l4", "l40", "l40s", "t4",
    "rtx-pro-6000", "rtx-a6000", "rtx-4000-ada", "rtx-5000-ada", "rtx-6000-ada", "arc-b60",
}  # fmt: skip
# One to a machine: nothing public joins two of them.
SINGLE = {"gh200", "m1", "m1-max", "m2-ultra", "m3-max"}
GPUS = LINKED | CARDS | SINGLE
GIVEN_UP = {("b300", "int8"), ("gb300", "int8")}
NO_BF16 = {"v100", "t4", "m1", "m1-max", "m2-ultra", "m3-max"}

# The rows of the book's two tables: pod, host, HBM, HBM rate, bf16, int8 or fp8, one ICI link.
BOOK_TPUS = {
    "v3": ((32, 32), (4, 2), 32e9, 9.0e11, 1.4e14, 1.4e14, 1e11),
    "v4": ((16, 16, 16), (2, 2, 1), 32e9, 1.2e12, 2.75e14, 2.75e14, 4.5e10),
    "v5p": ((16, 20, 28), (2, 2, 1), 96e9, 2.8e12, 4.59e14, 9.18e14, 9e10),
    "v5e": ((16, 16), (4, 2), 16e9, 8.1e11, 1.97e14, 3.94e14, 4.5e10),
    "v6e": ((16, 16), (4, 2), 32e9, 1.6e12, 9.20e14, 1.84e15, 9e10),
    "7x": ((4, 4, 576), (2, 2, 1), 192e9, 7.4e12, 2.30e15, 4.61e15, 9e10),
}
# SMs, shared memory, L2, HBM, HBM rate, bf16, int8.
BOOK_GPUS = {
    "a100": (108, 192e3, 40e6, 80e9, 2.0e12, 3.1e14, 6.2e14),
    "h100": (132, 256e3, 50e6, 80e9, 3.4e12, 9.9e14, 2.0e15),
    "h200": (132, 256e3, 50e6, 141e9, 4.8e12, 9.9e14, 2.0e15),
    "b200": (148, 256e3, 126e6, 192e9, 8.0e12, 2.3e15, 4.5e15),
}


def test_the_chips_that_the_catalog_promises() -> None:
    assert set(chip_names()) == TPUS | GPUS | {"wse3", "groq", "cpu"}


@pytest.mark.parametrize("name", chip_names())
def test_every_figure_says_where_it_is_from(name: str) -> None:
    chip = catalog_chip(name)
    assert chip.name == name
    assert list(chip.figures) == list(chip.sourced)
    for path, figure in chip.figures.items():
        assert len(figure.source) > 8, path
        assert re.fullmatch(r"20\d\d-\d\d", figure.as_of), path
        for _, source in figure.also:
            assert len(source) > 8, path


@pytest.mark.parametrize("name", sorted(TPUS))
def test_a_tpu_has_what_a_plan_needs(name: str) -> None:
    chip = catalog_chip(name)
    assert chip.kind == "tpu"
    assert chip.node is None
    for path in ("peak.bf16", "hbm.capacity", "hbm.usable", "hbm.bandwidth", "ici.link", "ici.hop"):
        assert chip.need(path) > 0


@pytest.mark.parametrize("name", sorted(GPUS))
def test_a_gpu_has_what_a_plan_needs(name: str) -> None:
    chip = catalog_chip(name)
    assert chip.kind == "gpu"
    assert chip.ici is None
    for path in ("peak.fp16", "hbm.capacity", "hbm.bandwidth"):
        assert chip.need(path) > 0
    assert ("bf16" in chip.peak_flops_per_s) is (name not in NO_BF16)
    # No public document gives a latency, and none is made up.
    assert chip.node is None or chip.node.latency_s is None


@pytest.mark.parametrize("name", sorted(LINKED | CARDS))
def test_links_of_a_gpu(name: str) -> None:
    chip = catalog_chip(name)
    egress = chip.need("node.egress")
    if name in CARDS:
        assert egress <= chip.need("pcie.bandwidth")
    else:
        assert egress > (chip.pcie_bytes_per_s_per_chip or 0)


@pytest.mark.parametrize("name", sorted(GEFORCE))
def test_geforce_says_that_sums_in_fp32_halve_its_peak(name: str) -> None:
    chip = catalog_chip(name)
    assert chip.market == "desktop"
    assert "half rate" in chip.note
    # Whole rate on the same generation is four times the fp32 peak, and int8 twice that.
    assert chip.peak("fp16") == pytest.approx(2 * chip.need("vector.fp32"), rel=0.01)
    assert chip.peak("int8") == pytest.approx(4 * chip.peak("fp16"), rel=0.01)


@pytest.mark.parametrize("name", chip_names())
def test_usable_memory_is_near_the_documented(name: str) -> None:
    chip = catalog_chip(name)
    if chip.hbm_bytes and chip.hbm_usable_bytes:
        assert 0.90 < chip.hbm_usable_bytes / chip.hbm_bytes < 1.09


@pytest.mark.parametrize("name", chip_names())
def test_wider_types_are_not_faster(name: str) -> None:
    peaks = catalog_chip(name).peak_flops_per_s
    for wide, narrow in (("bf16", "fp8"), ("bf16", "int8"), ("fp8", "fp4"), ("tf32", "bf16")):
        if wide in peaks and narrow in peaks and (name, narrow) not in GIVEN_UP:
            assert peaks[wide] <= peaks[narrow]


@pytest.mark.parametrize(("name", "dtype"), sorted(GIVEN_UP))
def test_blackwell_ultra_gave_int8_up(name: str, dtype: str) -> None:
    chip = catalog_chip(name)
    assert chip.peak(dtype) < chip.peak("bf16")


def test_what_is_not_published_is_absent() -> None:
    wse3, cpu = catalog_chip("wse3"), catalog_chip("cpu")
    assert wse3.peak_flops_per_s == {}  # only a sparse peak is published
    assert wse3.hbm_bytes is None
    assert "fp8" not in catalog_chip("a100").peak_flops_per_s
    assert "int8" not in catalog_chip("7x").peak_flops_per_s
    assert cpu.figures == {}


def test_devices_of_a_chip() -> None:
    devices = {name: catalog_chip(name).n_devices for name in TPUS}
    assert devices == {"v2": 2, "v3": 2, "v4": 1, "v5e": 1, "v5p": 1, "v6e": 1, "7x": 2}


@pytest.mark.parametrize("name", BOOK_TPUS)
def test_quoted_tpus_are_the_books_table(name: str) -> None:
    chip = catalog_chip(name).quoted("book")
    assert chip.ici is not None
    row = (
        chip.ici.pod_shape, chip.ici.host_shape, chip.hbm_bytes, chip.hbm_bytes_per_s,
        chip.peak("bf16"), chip.peak("int8"), chip.ici.link_bytes_per_s_one_way,
    )  # fmt: skip
    assert row == BOOK_TPUS[name]


@pytest.mark.parametrize("name", BOOK_GPUS)
def test_quoted_gpus_are_the_books_table(name: str) -> None:
    chip = catalog_chip(name).quoted("book")
    row = (
        chip.n_sms, chip.smem_bytes_per_sm, chip.l2_bytes, chip.hbm_bytes, chip.hbm_bytes_per_s,
        chip.peak("bf16"), chip.peak("int8"),
    )  # fmt: skip
    assert row == BOOK_GPUS[name]


def test_a_quote_carries_its_own_source() -> None:
    chip = catalog_chip("v5e").quoted("book")
    assert "table of chips" in chip.figures["hbm.bandwidth"].source
    assert chip.figures["dcn.bandwidth"] == catalog_chip("v5e").figures["dcn.bandwidth"]


def test_a_document_that_is_not_quoted() -> None:
    with pytest.raises(UnknownName, match=r'document quoted for v5e "paper"\. Known: "book"\.'):
        catalog_chip("v5e").quoted("paper")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("V5P", "v5p"),
        ("tpu-v5p", "v5p"),
        ("tpu_v5e", "v5e"),
        ("v5 lite", "v5e"),
        ("Trillium", "v6e"),
        ("ironwood", "7x"),
        ("tpu7x", "7x"),
        ("a100-80g", "a100"),
        ("A100-40GB", "a100-40g"),
        ("GB200-NVL72", "gb200"),
        ("wse-3", "wse3"),
        ("RTX 4090", "rtx-4090"),
        ("rtx3090ti", "rtx-3090-ti"),
        ("RTX A6000", "rtx-a6000"),
        ("RTX 6000 Ada", "rtx-6000-ada"),
        ("Arc Pro B60", "arc-b60"),
        ("M2 Ultra", "m2-ultra"),
    ],
)
def test_names_and_aliases(text: str, name: str) -> None:
    assert find_chip(text).name == name


def test_no_alias_means_two_chips() -> None:
    names = [alias.lower() for n in chip_names() for alias in (n, *catalog_chip(n).aliases)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("text", "close"),
    [("v5", '"v5e", "v5p"'), ("h10", "h100"), ("ironwod", "ironwood"), ("tpu", "")],
)
def test_an_unknown_chip_names_the_close_ones(text: str, close: str) -> None:
    with pytest.raises(UnknownName, match=rf'unknown chip "{text}"\. .*{close}.*shardwise hw'):
        find_chip(text)


def test_a_chip_is_a_value() -> None:
    assert catalog_chip("h100") is catalog_chip("h100")
    assert hash(catalog_chip("h100")) == hash(find_chip("H100"))
    assert isinstance(catalog_chip("h100"), Chip)


@pytest.mark.parametrize("text", ["./machine.json", "/srv/machines/ours", "host.json"])
def test_a_path_of_another_kind_of_file_is_no_unknown_chip(text: str) -> None:
    with pytest.raises(BadInput, match=rf'"{text}" is no file of a chip: its name ends in \.toml'):
        find_chip(text)
