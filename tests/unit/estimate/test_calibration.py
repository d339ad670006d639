"""Rates of training: factors of architecture, chip and framework on the values of all chips."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from shardwise.estimate.calibration import (
    KINDS,
    MAX_SHARE,
    PEAK,
    SHARES,
    architecture_of,
    calibration,
    power_per_flop,
    training_fit,
)
from shardwise.hardware import catalog_chip, chip_names
from shardwise.vocabulary import FRAMEWORKS, UNKNOWN_FRAMEWORK

FIT = training_fit()


def factor(level: str, member: str, rate: str) -> float:
    return float(FIT[level].get(member, {}).get(rate, (1.0, 0.0))[0])


def test_levels_multiply() -> None:
    chip = catalog_chip("h100")
    for rate in ("attention", "hbm", "kernel_s"):
        expected = FIT["all"][rate][0]
        for level, member in (("architecture", "hopper"), ("chip", "h100"), ("framework", "nemo")):
            expected *= factor(level, member, rate)
        assert getattr(calibration(chip, "nemo"), rate) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", chip_names())
def test_no_gpu_and_no_tpu_runs_at_its_peak(name: str) -> None:
    chip = catalog_chip(name)
    rates = calibration(chip)
    if chip.kind not in KINDS:
        assert rates is PEAK
        return
    shares = [*rates.matmuls.values(), *(getattr(rates, r) for r in SHARES if hasattr(rates, r))]
    assert all(0.1 < share <= MAX_SHARE for share in shares)
    assert rates.spread > FIT["spread"]["group"]


def test_without_runs_a_chip_has_the_rates_of_its_architecture_and_a_wider_spread() -> None:
    known, other, far = (catalog_chip(name) for name in ("h100", "gh200", "rtx-4090"))
    assert (architecture_of("gh200"), calibration(other).name) == ("hopper", "hopper")
    assert calibration(far).name == "GPU"
    spreads = [calibration(chip, "nemo").spread for chip in (known, other, far)]
    assert spreads == sorted(spreads)
    assert spreads[0] < spreads[1] < spreads[2]


def test_an_unknown_framework_has_the_mean_of_all_and_a_wider_spread() -> None:
    chip = catalog_chip("h100")
    plain = calibration(chip, UNKNOWN_FRAMEWORK)
    assert plain == calibration(chip)
    assert all(calibration(chip, name).spread <= plain.spread for name in FRAMEWORKS)
    assert calibration(chip, "torchtitan").attention < plain.attention


def test_more_power_for_the_same_peak_is_a_larger_share_within_what_was_measured() -> None:
    chip = catalog_chip("rtx-4090")
    ratios = [power_per_flop(replace(chip, power_w=watts)) for watts in (30, 120, 150, 9000)]
    assert ratios == sorted(ratios)
    assert [ratios[0], ratios[-1]] == FIT["power"]["range"]
    shares = [calibration(replace(chip, power_w=watts)).matmul("bf16") for watts in (30, 9000)]
    assert shares[0] < shares[1]
    assert power_per_flop(replace(chip, power_w=None)) == 1.0


def test_tpus_launch_no_kernels_one_by_one() -> None:
    rates = calibration(catalog_chip("v5p"), "maxtext")
    assert (rates.kernel_s, rates.host_s, rates.expert_s) == (0.0, 0.0, 0.0)
    assert rates.contention > 0


def test_every_number_has_a_standard_deviation() -> None:
    sections = [FIT["all"]]
    for level in ("architecture", "chip", "framework"):
        sections += FIT[level].values()
    for section in sections:
        for value, deviation in section.values():
            assert value > 0
            assert 0 < deviation < 1
    assert math.isclose(FIT["power"]["watts_per_flop_s"], 700 / 989e12, rel_tol=0.01)
    assert {*FIT["framework"]} <= {*FRAMEWORKS}
