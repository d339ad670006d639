"""The envelope: the book's numbers, its limits, and that better chips never do worse."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.errors import UnknownFigure
from shardwise.formulas.envelope import Load, envelope, training_s
from shardwise.hardware import find_chip
from shardwise.hardware.chip import with_values
from shardwise.units import DAY

V5E = find_chip("v5e")
# Book §8: LLaMA-3-70B in int8 with 160 kB of KV cache a token, 8,192 tokens a sequence.
BOOK = Load(active=70e9, weight_bytes=70e9, kv_bytes=8192 * 160e3)
loads = st.builds(
    Load,
    active=st.floats(1e6, 1e12),
    weight_bytes=st.floats(1e6, 1e12),
    kv_bytes=st.floats(1e4, 1e11),
)
limits = st.floats(1e-5, 10)


def test_the_books_server() -> None:
    best = envelope(BOOK, V5E, 8)
    assert best.max_batch == 44
    assert best.fewest_chips == 5
    assert best.full is not None
    assert best.full.step_s == pytest.approx(0.0194, rel=0.02)


def test_the_books_training_run() -> None:
    seconds = training_s(70e9, 15e12, find_chip("v5p").quoted("book"), 8960, mfu=0.4)
    assert seconds / DAY == pytest.approx(44, rel=0.01)


@given(loads, limits, st.integers(1, 4096))
def test_the_largest_batch_within_a_limit(load: Load, limit_s: float, n_chips: int) -> None:
    best = envelope(load, V5E, n_chips, limit_s=limit_s)
    assert best.within is None or best.within.step_s <= limit_s * (1 + 1e-6)
    batch = int(best.within.batch) if best.within else 0
    assert batch <= best.max_batch
    if batch < best.max_batch:
        fitting = Load(active=load.active, weight_bytes=load.weight_bytes, kv_bytes=load.kv_bytes)
        one = envelope(fitting, V5E, n_chips).single
        following = (batch + 1) * one.kv_s + max((batch + 1) * one.math_s, one.weights_s)
        assert following >= limit_s * (1 - 1e-6)


@given(loads, st.integers(1, 512), st.floats(1, 8), st.sampled_from(["hbm.bandwidth", "peak.bf16"]))
def test_a_faster_chip_is_never_slower(
    load: Load, n_chips: int, factor: float, figure: str
) -> None:
    value = {"hbm.bandwidth": V5E.hbm_bytes_per_s, "peak.bf16": V5E.peak("bf16")}[figure]
    assert value is not None
    faster = with_values(V5E, {figure: factor * value})
    before, after = envelope(load, V5E, n_chips), envelope(load, faster, n_chips)
    assert after.max_batch == before.max_batch
    assert after.single.step_s <= before.single.step_s
    if before.full and after.full:
        assert after.full.tokens_per_s >= before.full.tokens_per_s * (1 - 1e-12)


def test_a_chip_without_figures() -> None:
    with pytest.raises(UnknownFigure, match="cpu"):
        envelope(BOOK, find_chip("cpu"), 1)
