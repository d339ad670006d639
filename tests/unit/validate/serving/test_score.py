"""Predictions of serving against measurements, with predictors made for the test."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from shardwise.errors import NoStrategy
from shardwise.validate import ServeRun, SkippedRecord
from shardwise.validate.records.scoring import is_calibration_group
from shardwise.validate.serving import predict as serving_predict
from shardwise.validate.serving.kinds import kind_of
from shardwise.validate.serving.predict import PredictedFigure
from shardwise.validate.serving.runs import read
from shardwise.validate.serving.score import validate_serving
from tests.golden.terminal import run
from tests.unit.validate.serving_record import serving


def served(**changes: Any) -> ServeRun:
    found = read(serving(**changes))
    assert isinstance(found, ServeRun), found
    return found


def scaled(factor: float, width: float = 1.0) -> Any:
    """A predictor that is off by a factor in every metric, with an interval about it."""

    def predict(run: ServeRun) -> Mapping[str, PredictedFigure]:
        return {
            metric: PredictedFigure(
                lower=factor * value / width, expected=factor * value, upper=factor * value * width
            )
            for metric, value in run.measured.items()
        }

    return predict


def test_exact_predictions_have_no_error() -> None:
    found = validate_serving([served()], scaled(1.0))
    assert found is not None
    assert [(e.name, e.n, e.median_abs_err, e.bias) for e in found.kinds] == [
        ("decode", 1, 0, 0), ("ttft", 1, 0, 0), ("throughput", 1, 0, 0),
    ]  # fmt: skip
    assert all(e.interval_coverage == 1 for e in found.kinds)


def test_above_zero_is_slow_for_times_and_rates() -> None:
    found = validate_serving([served()], scaled(2.0))
    assert found is not None
    errs = {row.metric: row.err for row in found.rows}
    assert errs == pytest.approx({"ttft_s": 1.0, "tpot_s": 1.0, "tokens_per_s": -0.5})
    assert all(e.interval_coverage == 0 for e in found.kinds)
    wide = validate_serving([served()], scaled(2.0, 2.5))
    assert wide is not None
    assert all(e.interval_coverage == 1 for e in wide.kinds)


def test_errors_of_several_rows() -> None:
    rows = [served(id=f"row-{i}", measured={"tpot_ms": 10.0}) for i in range(10)]
    shares = (-0.5, 0.1, 0.2, 0.3, 0.4, 0, 0, 0, 0, 0.9)
    off = {row.id: share for row, share in zip(rows, shares, strict=True)}
    found = validate_serving(rows, lambda row: scaled(1 + off[row.id])(row))
    assert found is not None
    (decode,) = found.kinds
    assert (decode.n, decode.metric) == (10, "")
    assert decode.median_abs_err == pytest.approx(0.15)
    assert decode.mean_abs_err == pytest.approx(0.24)
    assert decode.p90_abs_err == pytest.approx(0.9)
    assert decode.bias == pytest.approx(0.05)
    assert [row.id for row in found.worst(2)] == ["row-9", "row-0"]


@pytest.mark.parametrize(
    ("changes", "metric", "kind"),
    [
        ({}, "tpot_s", "decode"),
        ({}, "ttft_s", "ttft"),
        ({}, "tokens_per_s", "throughput"),
        ({"phase": "decode", "batch": 1}, "tokens_per_s", "decode"),
        ({}, "tokens_per_s_per_user", "decode"),
        ({"batch": 1}, "total_tokens_per_s", "latency"),
        ({}, "total_tokens_per_s", "throughput"),
        ({}, "latency_s", "latency"),
        ({"phase": "prefill"}, "prefill_s", "ttft"),
        ({}, "memory_bytes", "memory"),
    ],
)
def test_kinds(changes: dict[str, Any], metric: str, kind: str) -> None:
    assert kind_of(served(**changes), metric) == kind


def test_only_core_rows_of_quality_a_and_b_are_counted() -> None:
    rows = [served(), served(id="repeat", tier="extra"), served(id="odd", quality="C")]
    found = validate_serving(rows, scaled(1.0))
    every = validate_serving(rows, scaled(1.0), everything=True)
    assert found is not None
    assert every is not None
    assert (found.counted, len(found.rows)) == (("test-serve",), 9)
    assert every.counted == ("test-serve", "repeat", "odd")
    only = validate_serving(rows[1:], scaled(1.0))
    assert only is not None
    assert only.counted == ("repeat", "odd")


def test_halves_go_by_group() -> None:
    rows = [served(id=name, group=name) for name in "abcdefgh"]
    found = validate_serving(rows, scaled(1.0))
    assert found is not None
    chosen = [name for name in "abcdefgh" if is_calibration_group(name)]
    assert 0 < len(chosen) < 8
    assert {e.n for e in found.chosen} == {len(chosen)}
    assert {e.n for e in found.held_back} == {8 - len(chosen)}


def test_sources_by_metric() -> None:
    rows = [served(), served(id="b", source={"repo": "other"}, measured={"tpot_ms": 1})]
    found = validate_serving(rows, scaled(1.0))
    assert found is not None
    assert {(e.name, e.metric, e.n) for e in found.sources} == {
        ("someone/engine", "ttft_s", 1), ("someone/engine", "tpot_s", 1),
        ("someone/engine", "tokens_per_s", 1), ("other", "tpot_s", 1),
    }  # fmt: skip


def test_what_is_not_predicted_has_a_reason() -> None:
    def predict(row: ServeRun) -> Mapping[str, PredictedFigure]:
        if row.id == "refused":
            raise NoStrategy("no split: of this.")
        return {"ttft_s": PredictedFigure(lower=0.1, expected=0.1, upper=0.1)}

    broken = SkippedRecord(id="x", source="y", reason="layout not published: z")
    rows = [served(), served(id="refused"), broken]
    found = validate_serving(rows, predict)
    assert found is not None
    assert [(u.id, u.kind) for u in found.underivable] == [
        ("test-serve", "no prediction of a metric"), ("test-serve", "no prediction of a metric"),
        ("refused", "no split"), ("x", "layout not published"),
    ]  # fmt: skip
    assert validate_serving(rows[1:], predict) is None


def test_the_verb(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setattr(serving_predict, "predict", scaled(1.25, 1.5))
    done = run("validate", "--serve")
    assert (done.code, done.err) == (0, "")
    assert max(map(len, done.out.splitlines())) <= 80
    assert "decode" in done.out
    assert "+25.0 %" in done.out
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([serving(), serving(id="odd", quality="C")]))
    told = json.loads(run("validate", "--serve", "--data", str(path), "--json").out)
    assert told["counted"] == ["test-serve"]
    every = json.loads(run("validate", "--serve", "--all", "--data", str(path), "--json").out)
    assert every["counted"] == ["test-serve", "odd"]
    assert run("validate", "--all").code == 2
    path.write_text("[{}]")
    refused = run("validate", "--serve", "--data", str(path))
    assert refused.code == 3
    assert "no row can be predicted" in refused.err


def test_a_run_hashes_and_differs() -> None:
    assert len({served(), served(id="b"), replace(served(), prompt_tokens=2)}) == 3
