"""bench/calibrate.py: the hierarchical fit, on a few published runs."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from shardwise.search.training.practice import best_published_mfu, published_layouts
from shardwise.validate import Run, load
from tests.benches import imported

GROUPS = ("mpt|7b|H100", "mb|llama3-8b|B200", "tpur|llama3-8b|v6e", "nemo|llama2-70b|H100")


@pytest.fixture(scope="module")
def few() -> Iterator[tuple[ModuleType, ModuleType, Any, Any]]:
    """`hierarchy` and `calibrate`, the rows of some groups with their effects, and their fit."""
    runs = [run for run in load() if isinstance(run, Run) and run.group in GROUPS]
    with pytest.MonkeyPatch.context() as patch:
        hierarchy, calibrate = imported(patch, "hierarchy", "calibrate")
        patch.setattr(calibrate, "load", lambda: runs)
        levels = hierarchy.Hierarchy(calibrate.gather())
        yield hierarchy, calibrate, levels, levels.fit(np.ones(len(levels.rows), bool))


def errors(levels: Any, predicted: Any) -> Any:
    return np.abs(predicted - levels.measured)


def test_a_fit_is_nearer_than_the_start(few: tuple[ModuleType, ModuleType, Any, Any]) -> None:
    _, _, levels, fit = few
    start, _ = levels.evaluate(np.zeros(len(levels.columns)))
    assert len(levels.rows) > 15
    assert np.median(errors(levels, fit.predicted)) < np.median(errors(levels, start)) / 2


def test_leaving_a_group_out_is_a_fit_without_it(
    few: tuple[ModuleType, ModuleType, Any, Any],
) -> None:
    """The linearized left-out predictions are near those of fits that never saw the group."""
    _, _, levels, fit = few
    labels = [row.group for row in levels.rows]
    predicted = levels.left_out(fit, labels)
    assert np.median(errors(levels, predicted)) > np.median(errors(levels, fit.predicted))
    out = np.array([label == GROUPS[0] for label in labels])
    refitted = levels.fit(~out).predicted
    assert predicted[out] == pytest.approx(refitted[out], abs=0.06)


def test_no_label_leaves_everything_in(few: tuple[ModuleType, ModuleType, Any, Any]) -> None:
    _, _, levels, fit = few
    labels = ["" if row.group == GROUPS[0] else row.group for row in levels.rows]
    assert not np.allclose(levels.left_out(fit, labels), fit.predicted)


def test_the_document_holds_the_fit(few: tuple[ModuleType, ModuleType, Any, Any]) -> None:
    hierarchy, calibrate, levels, fit = few
    document = tomllib.loads(calibrate.document_of(levels, fit, {"group": 0.2}))
    assert document["spread"] == {"group": 0.2}
    column = levels.position["all", "", "attention"]
    value, deviation = document["all"]["attention"]
    assert value == pytest.approx(0.5 * np.exp(fit.effects[column]), rel=1e-3)
    assert 0 < deviation <= hierarchy.PRIORS["attention"][1]
    assert document["chips"]["hopper"]
    assert {*document["framework"]} <= {"llm-foundry", "nemo", "maxtext"}


def test_data_narrow_the_deviations(few: tuple[ModuleType, ModuleType, Any, Any]) -> None:
    hierarchy, _, levels, fit = few
    deviations = levels.standard_deviations(fit)
    assert (deviations <= levels.prior_sd * 1.0001).all()
    assert deviations[levels.position["all", "", "bf16"]] < 0.8 * hierarchy.PRIORS["bf16"][1]


def test_the_file_of_practice_is_that_of_the_records() -> None:
    with pytest.MonkeyPatch.context() as patch:
        (calibrate,) = imported(patch, "calibrate")
        runs = [*calibrate.core_runs()]
        layouts = calibrate.published_layouts(runs)
        best = calibrate.best_mfu(runs)
        assert list(published_layouts()) == layouts
        document = tomllib.loads(calibrate.practice_document(layouts, best))
        assert document["layouts"] == [list(layout) for layout in layouts]
    assert best_published_mfu("mi300x", "bf16") is None
    for (chip, dtype), reached in best.items():
        assert best_published_mfu(chip, dtype) == pytest.approx(reached, abs=1e-3)
        assert 0.1 < reached < 0.8
