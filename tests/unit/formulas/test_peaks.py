"""Peaks from units, and what surrounds them."""

from __future__ import annotations

import pytest

from shardwise.errors import UnknownFigure
from shardwise.formulas import peaks
from shardwise.hardware import chip_names, find_chip, parse_system


@pytest.mark.parametrize("name", ["v5e", "v5p"])
def test_matrix_units_make_the_published_peak(name: str) -> None:
    chip = find_chip(name)
    side = chip.matrix_unit[0] if chip.matrix_unit else 0
    rate = peaks.matrix_flops_per_cycle(side, side, side, side)
    made = peaks.peak_from_units(rate, chip.need("core.clock"), chip.need("matrix_unit.count"))
    assert made == pytest.approx(chip.peak("bf16"), rel=0.01)


def test_the_clock_gives_the_peak_back() -> None:
    alus = peaks.alus(132, 4, 32)
    for fused in (False, True):
        peak = peaks.vector_peak(alus, 1.98e9, fused=fused)
        assert peaks.clock_from_peak(peak, alus, fused=fused) == pytest.approx(1.98e9)
    assert peaks.flops_per_cycle(990e12, 1.76e9, 528) == pytest.approx(1065.3, abs=0.1)
    assert peaks.macs_per_s(2.0) == 1.0


def test_cores_and_dtypes() -> None:
    v5p = find_chip("v5p")
    assert peaks.core_peak(v5p) == v5p.peak("bf16") / 2
    assert peaks.dtype_speedup(v5p, "int8") == 2
    assert peaks.dtype_speedup(v5p, "bf16", "int8") == 0.5
    with pytest.raises(UnknownFigure):
        peaks.core_peak(find_chip("h100"))


@pytest.mark.parametrize("name", chip_names())
def test_links_of_every_chip(name: str) -> None:
    chip = find_chip(name)
    if chip.ici is None:
        with pytest.raises(UnknownFigure):
            peaks.ici_links(chip)
    else:
        assert peaks.ici_links(chip) in (4, 6)


def test_memories_of_an_sm() -> None:
    shared, registers = peaks.sm_bytes(find_chip("h100"))
    assert (shared, registers) == (132 * 256e3, 132 * 256 * 2**10)
    # 65,536 registers of 32 bits: 64 warps of 32 registers a thread, 8 of 255 rounded to 256.
    assert peaks.resident_warps(65_536, 32) == 64
    assert peaks.resident_warps(65_536, 256) == 8


def test_elementwise_operations() -> None:
    assert peaks.elementwise_intensity() == 1 / 12
    assert peaks.elementwise_intensity(flops=2, reads=3, element_bytes=2.0) == 0.25
    assert peaks.elementwise_bytes(1000) == 12_000


def test_a_node_is_bound_by_its_smaller_side() -> None:
    through, out, least = peaks.node_bytes_per_s(8, 450e9, 4, 64, 25e9)
    assert (through, out, least) == (6.4e12, 3.6e12, 3.6e12)
    assert peaks.node_bytes_per_s(8, 450e9, 1, 64, 25e9)[2] == 1.6e12
    assert peaks.bisection_bytes_per_s(8, 450e9) == 3.6e12
    assert peaks.egress((18, 4), 50e9) == 3.6e12


def test_totals_of_several_slices() -> None:
    one, four = (peaks.totals(parse_system(f"v5p:16x20x28{n}")) for n in ("", "*4"))
    assert one.n_hosts == 2240
    assert four.flops_per_s == 4 * one.flops_per_s
    assert four.n_hosts == 4 * 2240
    assert one.hbm_bytes is not None
    assert four.hbm_bytes == 4 * one.hbm_bytes


def test_totals_leave_out_what_is_not_known() -> None:
    found = peaks.totals(parse_system("mi300x:8"))
    assert (found.n_chips, found.host_dram_bytes) == (8, None)
    with pytest.raises(UnknownFigure, match="dense peak at bf16"):
        peaks.totals(parse_system("cpu:8"))
