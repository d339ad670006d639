"""Fits of seconds to amounts of work."""

from __future__ import annotations

import pytest

from shardwise.measure.fit import fitted, fitted_transfer

WORK = [(1e9, 1e6), (4e9, 1e6), (1e9, 8e6), (2e8, 3e7)]


def test_the_rates_behind_exact_seconds_are_found() -> None:
    fit = fitted([((flops, n_bytes), flops / 1e11 + n_bytes / 1e10) for flops, n_bytes in WORK])
    assert fit.seconds_per == pytest.approx((1e-11, 1e-10))
    assert fit.residual == pytest.approx(0, abs=1e-9)
    assert fit.source == "fitted to 4 operations, median residual 0%"


def test_no_work_takes_negative_time() -> None:
    fit = fitted([((flops, n_bytes), flops / 1e11 - n_bytes / 1e11) for flops, n_bytes in WORK[:3]])
    assert min(fit.seconds_per) >= 0
    assert fit.residual > 0


def test_a_rate_of_rounding_is_none() -> None:
    fit = fitted([((1e9, 1.0), 1.0), ((2e9, 1.0), 2.0), ((4e9, 1.0), 4.0)])
    assert fit.seconds_per == pytest.approx((1e-9, 0))
    assert fit.seconds_per[1] == 0


def test_a_required_amount_takes_time_whatever_the_noise() -> None:
    slow_start = [((1.0, n_bytes), seconds) for n_bytes, seconds in ((1e3, 3.0), (1e6, 1.0))]
    assert fitted(slow_start).seconds_per[1] == 0
    assert fitted(slow_start, required=1).seconds_per[1] > 0


def transfers(*seconds: float) -> list[tuple[tuple[float, float], float]]:
    """Transfers of a kilobyte, a hundred kilobytes and a megabyte."""
    return [((1.0, n_bytes), s) for n_bytes, s in zip((1e3, 1e5, 1e6), seconds, strict=True)]


def test_a_transfer_begins_and_sends_its_bytes() -> None:
    fit = fitted_transfer(transfers(1e-5 + 1e-6, 1e-5 + 1e-4, 1e-5 + 1e-3))
    assert fit.seconds_per == pytest.approx((1e-5, 1e-9))


@pytest.mark.parametrize("seconds", [(3e-3, 1e-3, 2e-3), (1e-5, 9e-3, 2e-3), (2e-3, 2e-3, 2e-3)])
def test_bytes_take_time_on_a_busy_machine_too(seconds: tuple[float, ...]) -> None:
    """A small transfer took longer than a large one, or as long."""
    _, byte_s = fitted_transfer(transfers(*seconds)).seconds_per
    assert 0.05 < 1e6 * byte_s / seconds[-1] < 1.1
