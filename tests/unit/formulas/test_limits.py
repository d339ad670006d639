"""The limits of the book's chapter on training, from its own numbers."""

from __future__ import annotations

import pytest

import shardwise as sw
from shardwise.formulas.limits import Limit, Widths, best_split, limits

MANY_EXPERTS = {"n_experts": 256, "experts_per_token": 8}


def named(widths: Widths, chip: str) -> dict[str, Limit]:
    return {row.name: row for row in limits(widths, sw.chip(chip))}


def test_v5p_as_in_the_book() -> None:
    """§5: 2550 / 3 = 850 tokens per chip; F / 2550 ways an axis; mixed, 2550^2 / (2 F)."""
    rows = named(Widths.of(sw.model("llama3-70b")), "v5p")
    assert rows["FSDP or data over 1 axis"].value == 2550
    assert rows["FSDP or data over 3 axes"].value == 850
    assert rows["tensor over 1 axis"].value == pytest.approx(11.24, abs=0.01)
    assert rows["tensor over 2 axes"].value == pytest.approx(22.5, abs=0.1)
    assert rows["FSDP + tensor, at once"].value == pytest.approx(113, abs=0.5)
    assert rows["FSDP + tensor, in turn"].value == pytest.approx(4 * 113.4, abs=1)


def test_dcn_as_in_the_book() -> None:
    """§5: C / W_dcn = 4.46e14 / 6.25e9 = 71,360 tokens a chip."""
    value = named(Widths(d_ff=28672), "v5p")["data across slices"].value
    assert value == pytest.approx(71_360, rel=0.03)


def test_h100_as_in_the_book() -> None:
    """§12: 990e12 / 450e9 = 2,200 tokens a GPU in a node, about 2,475 across nodes of 400 GB/s;
    F / 2,200 ways of tensor parallelism.
    """
    rows = named(Widths(d_ff=28672), "h100")
    assert rows["FSDP or data inside a node"].value == pytest.approx(2200, rel=0.01)
    assert rows["FSDP or data across nodes"].value == pytest.approx(2475, rel=0.01)
    assert rows["tensor inside a node"].value == pytest.approx(28672 / 2200, rel=0.01)
    assert rows["tensor over two nodes"].value == pytest.approx(8 + 28672 / 2475, rel=0.01)


def test_experts_need_more_tokens() -> None:
    """§12: E / k times as many, since weights grow by E and FLOPs by k."""
    dense = named(Widths(d_ff=2048), "h100")
    experts = named(Widths.of(sw.model("deepseek-v3")), "h100")
    assert Widths.of(sw.model("deepseek-v3")) == Widths(
        d_ff=2048, n_experts=256, experts_per_token=8
    )
    name = "FSDP or data across nodes"
    assert experts[name].value == pytest.approx(32 * dense[name].value)
    dense, experts = (named(Widths(d_ff=2048, **more), "v5p") for more in ({}, MANY_EXPERTS))
    for rule in ("in turn", "at once"):
        name = f"FSDP + tensor, {rule}"
        assert experts[name].value == pytest.approx(32 * dense[name].value)


def test_a_split_of_experts_has_the_times_of_its_layers() -> None:
    """FSDP sends E F of weights, tensor parallelism k B of activations: both take as long."""
    split = best_split(Widths(d_ff=2048, **MANY_EXPERTS), sw.chip("v5p"), 4096, 4_096_000)
    assert split is not None
    fsdp, tensor = split
    mx, my = 2, 1
    assert 256 * 2048 / (tensor * mx) == pytest.approx(8 * 4_096_000 / (fsdp * my))


def test_the_best_split_balances_both() -> None:
    """§5: X = sqrt(B / F * Mx / My * N)."""
    split = best_split(Widths(d_ff=30_000), sw.chip("v5p"), 4096, 4_096_000 / 10)
    assert split is not None
    fsdp, tensor = split
    assert fsdp == pytest.approx((409_600 / 30_000 * 2 * 4096) ** 0.5)
    assert fsdp * tensor == pytest.approx(4096)
    assert best_split(Widths(d_ff=30_000), sw.chip("h100"), 64, 1e6) is None


def test_a_chip_without_networks_has_the_limit_of_its_memory() -> None:
    assert sw.chip("m1").node is None
    assert [row.name for row in limits(Widths(d_ff=1024), sw.chip("m1"), "fp16")] == [
        "a matmul, in HBM"
    ]


def test_experts_share_the_tokens_of_a_chip() -> None:
    """§4: of a mixture of experts the critical batch is E / k times as large."""
    dense, experts = Widths(d_ff=2048), Widths(d_ff=2048, n_experts=256, experts_per_token=8)
    of_dense, of_experts = (limits(widths, sw.chip("v6e"))[0] for widths in (dense, experts))
    assert of_experts.value == pytest.approx(of_dense.value * 256 / 8)
    assert (of_dense.section, of_experts.section) == ("1", "4")
    assert of_experts.formula == "C / W_hbm · E / k"
