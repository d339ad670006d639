"""Predictions against measurements: what is counted, what is said of the rest."""

from __future__ import annotations

import dataclasses
import functools

import pytest

from shardwise.validate import Run, SkippedRecord, load
from shardwise.validate.training.predict import Prediction, predict
from shardwise.validate.training.score import MIN_DIFFERENCE, Validation, errors, validate

ROW = Prediction(
    id="a",
    source="s",
    group="g",
    quality="A",
    tier="core",
    predicted=1.1,
    lower=0.5,
    upper=2.0,
    measured=1.0,
    unit="s",
    err=0.1,
    left_out_err=None,
    peers={"other": 1.5},
)


@functools.cache
def some() -> Validation:
    """Every tenth published run."""
    found = validate(load()[::10])
    assert found is not None
    return found


def test_every_row_is_predicted_or_has_a_reason() -> None:
    runs = load()[::10]
    ids = [r.id for r in some().rows] + [u.id for u in some().overall.underivable]
    assert sorted(ids) == sorted(r.id for r in runs)
    assert all(u.reason for u in some().overall.underivable)


def test_bounds_are_in_order() -> None:
    for row in some().rows:
        assert 0 < row.lower <= row.predicted <= row.upper
        assert row.err == row.predicted / row.measured - 1


def test_errors_of_rows() -> None:
    rows = [dataclasses.replace(ROW, err=e, predicted=1 + e) for e in (-0.2, 0.1, 0.4)]
    found = errors("s", rows)
    assert (found.n, found.median_abs_err, found.bias, found.p90_abs_err) == (3, 0.2, 0.1, 0.4)
    assert found.mean_abs_err == pytest.approx(0.7 / 3)
    assert found.peers == {"other": 0.5}


def test_only_core_rows_of_quality_a_and_b_are_counted() -> None:
    counted = {r.id for r in some().scored}
    assert {r.id for r in some().rows if r.tier == "core" and r.quality in "AB"} == counted
    others = some().others
    assert others is not None
    assert others.n + len(counted) == len(some().rows)
    assert some().overall.n == len(counted) < len(some().rows)


def single_jobs(run: Run) -> int:
    """Jobs with several layouts among one run: none."""
    alone = validate([run])
    assert alone is not None
    return alone.overall.n_jobs


def test_errors_without_the_group_are_of_fitted_rows() -> None:
    overall = some().overall
    assert overall.left_out is not None
    assert overall.specified is not None
    assert overall.specified.n < overall.left_out.n <= overall.n
    assert overall.left_out.median_abs_err > overall.median_abs_err
    assert 0 < overall.left_out.interval_coverage < 1


def test_order_and_regret_are_of_layouts_of_one_job() -> None:
    run = next(r for r in load() if isinstance(r, Run) and r.tier == "core" and r.quality == "A")
    told = predict(run)
    assert isinstance(told, Prediction)
    other = dataclasses.replace(run.layout, zero=3 if run.layout.zero != 3 else 1)
    other = dataclasses.replace(other, mesh=dataclasses.replace(other.mesh, fsdp=1))
    known = predict(dataclasses.replace(run, layout=other))
    assert isinstance(known, Prediction)
    ahead = known.predicted > told.predicted
    slower = dataclasses.replace(
        run, id="slower", layout=other, measured_step_s=2 * run.measured_step_s
    )
    found = validate([run, slower])
    assert found is not None
    assert found.overall.order_right == float(ahead)
    assert found.overall.regret == (0.0 if ahead else 1.0)
    assert found.overall.regret_interval == (found.overall.regret, found.overall.regret)
    assert (found.overall.n_jobs, single_jobs(run)) == (1, 0)
    single = validate([run])
    assert single is not None
    assert (single.overall.order_right, single.overall.regret) == (None, None)


def test_repeats_and_later_software_are_no_pair() -> None:
    run = next(r for r in load() if isinstance(r, Run) and r.tier == "core" and r.quality == "A")
    again = dataclasses.replace(run, id="again", measured_step_s=2 * run.measured_step_s)
    later = dataclasses.replace(
        again, date="2099-01-01", layout=dataclasses.replace(run.layout, zero=2)
    )
    for second in (again, later):
        found = validate([run, second])
        assert found is not None
        assert (found.overall.order_right, found.overall.regret) == (None, None)


def two_layouts() -> tuple[Run, Run]:
    """One job in two layouts, the first predicted to be faster, both measured as predicted."""
    run = next(r for r in load() if r.id == "sc21-145.6b-1536")
    assert isinstance(run, Run)
    longer = dataclasses.replace(run.layout, recomputed=())
    pair = [dataclasses.replace(run, id="a", layout=longer), dataclasses.replace(run, id="b")]
    told = [predict(r) for r in pair]
    found = [
        dataclasses.replace(r, measured_step_s=p.predicted)
        for r, p in zip(pair, told, strict=True)
        if isinstance(p, Prediction)
    ]
    first, second = sorted(found, key=lambda r: r.measured_step_s)
    return first, second


def test_repeats_of_a_layout_count_by_their_median() -> None:
    fast, slow = two_layouts()
    seconds = [0.5, 2.0, 3.0]  # the median is slower than the other layout, the mean is too
    repeats = [
        dataclasses.replace(fast, id=f"r{s}", measured_step_s=s * slow.measured_step_s)
        for s in seconds
    ]
    found = validate([*repeats, slow])
    assert found is not None
    assert found.overall.order_right == 0.0
    assert found.overall.regret == pytest.approx(1.0)


def test_times_that_are_nearly_equal_are_in_no_order() -> None:
    fast, slow = two_layouts()
    near_s = slow.measured_step_s * (1 + 0.9 * MIN_DIFFERENCE)
    near = dataclasses.replace(fast, measured_step_s=near_s)
    found = validate([near, slow])
    assert found is not None
    assert found.overall.order_right is None
    assert found.overall.regret == pytest.approx(0.9 * MIN_DIFFERENCE)
    apart_s = slow.measured_step_s * (1 + 1.1 * MIN_DIFFERENCE)
    apart = dataclasses.replace(fast, measured_step_s=apart_s)
    found = validate([apart, slow])
    assert found is not None
    assert found.overall.order_right == 0.0


def test_coverage_counts_measurements_inside_the_interval() -> None:
    fast, slow = two_layouts()
    far = dataclasses.replace(slow, id="far", measured_step_s=100 * slow.measured_step_s)
    for runs, share in (([fast, slow], 1.0), ([fast, far], 0.5), ([far], 0.0)):
        found = validate(runs)
        assert found is not None
        assert found.overall.interval_coverage == share


def test_nothing_to_predict() -> None:
    assert validate([SkippedRecord(id="x", source="s", reason="no global batch: none.")]) is None


def test_a_prediction_knows_no_row() -> None:
    """What a run is called, and what was measured, change nothing."""
    run = next(r for r in load() if isinstance(r, Run))
    other = dataclasses.replace(run, id="b", group="h", measured_step_s=1.0, notes="")
    first, second = predict(run), predict(other)
    assert isinstance(first, Prediction)
    assert isinstance(second, Prediction)
    assert first.predicted == second.predicted
