"""Saved activations and the chips that hold a model."""

from __future__ import annotations

import pytest

from shardwise.formulas import memory


def test_four_checkpoints_of_llama3() -> None:
    # Book §6: 20.9 TB with four saved tensors a layer, 21.6 TB with the state, 225 chips.
    saved = memory.saved_bytes(4e6, 80, [8192] * 4)
    assert saved == pytest.approx(20.97e12, rel=1e-3)
    assert memory.chips_to_hold(10 * 70e9 + saved, 96e9) == pytest.approx(225, abs=1)


def test_smallest_slices_of_llama3_70b() -> None:
    # Book §8: bf16, int8 and int4 weights alone need 8.75, 4.4 and 2.2 chips of 16 GB.
    assert [memory.chips_to_hold(70e9 * e, 16e9) for e in (2, 1, 0.5)] == [9, 5, 3]


def test_adam_limit_of_a_v5p() -> None:
    assert memory.parameters_that_fit(96e9, 10) == 9.6e9
