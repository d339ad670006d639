"""Seconds of one operation by cycles and by roofline."""

import json

import pytest

from shardwise.check.hlo.text import parse
from shardwise.check.timeline.durations import UNKNOWN_CYCLES, DeviceRates, OpWork, estimated_cycles
from shardwise.hardware import find_chip

CLOCK = 1.5e9


def fusion(estimate=None):
    config = {} if estimate is None else {"window_config": {"estimated_cycles": str(estimate)}}
    line = f"ROOT %a = f32[8]{{0}} add(%p, %p), backend_config={json.dumps(config)}"
    head = "HloModule m\n\nENTRY %main (p: f32[8]) -> f32[8] {\n  %p = f32[8]{0} parameter(0)\n"
    return parse(f"{head}  {line}\n}}\n").entry_computation.instructions["a"]


@pytest.mark.parametrize(
    ("estimate", "known"), [(1500, 1500.0), (0, None), (UNKNOWN_CYCLES, None), (None, None)]
)
def test_estimates_of_the_compiler(estimate, known):
    assert estimated_cycles(fusion(estimate)) == known


def test_cycles_come_before_the_roofline_and_the_roofline_where_they_are_silent():
    speed = DeviceRates.of_chip(find_chip("v5e"), "cycles", CLOCK)
    work = OpWork(flops=197e12, hbm_bytes=1.0)
    assert speed.seconds(fusion(1500), work) == 1e-6
    assert speed.seconds(fusion(UNKNOWN_CYCLES), work) == 1.0
    assert (
        DeviceRates.of_chip(find_chip("v5e"), "roofline", CLOCK).seconds(fusion(1500), work) == 1.0
    )


def test_the_roofline_is_the_slower_of_math_and_memory():
    speed = DeviceRates.of_chip(find_chip("v5e"), "roofline", None)
    assert speed.seconds(fusion(), OpWork(flops=197e12, hbm_bytes=2 * 819e9)) == 2.0
    assert speed.seconds(fusion(), OpWork(flops=394e12, dtype="s8", hbm_bytes=819e9 / 2)) == 1.0
    assert speed.seconds(fusion(), OpWork()) == 0.0


def test_two_devices_of_a_chip_have_half_of_it_each():
    one, two = (DeviceRates.of_chip(find_chip("7x"), "roofline", None, n) for n in (1, 2))
    work = OpWork(flops=1e15, hbm_bytes=1e9)
    assert two.seconds(fusion(), work) == 2 * one.seconds(fusion(), work)


@pytest.mark.parametrize(
    ("chip", "dtype", "peak"),
    [
        ("h100", "f32", 494.7e12),
        ("h100", "f8e4m3fn", 1979e12),
        ("v5e", "f32", 197e12),
        ("v5e", "f8e4m3fn", 197e12),
        ("v5e", "f16", 197e12),
    ],
)
def test_the_peak_of_an_element_type_or_of_the_next_that_the_chip_has(chip, dtype, peak):
    assert DeviceRates.of_chip(find_chip(chip), "roofline", None).peak_flops_per_s(dtype) == peak


def test_kernels_by_hand_reach_the_calibrated_share_less_what_narrow_heads_leave_empty():
    work = OpWork(flops=918e12, is_kernel=True, head_dim=128)
    speed = DeviceRates.of_chip(find_chip("v6e"), "cycles", CLOCK)
    assert speed.seconds(fusion(), work) == pytest.approx(1 / (speed.kernel_share / 2))
    assert DeviceRates.of_chip(find_chip("v6e"), "roofline", CLOCK).seconds(fusion(), work) == 1.0
