"""A published serving run -> what the planner's formulas give for each of its figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardwise.validate.serving_runs import ServeRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """One metric in the unit of `ServeRun.measured`.

    Args:
        expected: The prediction.
        lower, upper: Between them four figures of five are expected.
    """

    lower: float
    expected: float
    upper: float


def predict(run: ServeRun) -> Mapping[str, Predicted]:
    """Metric -> prediction, for each metric of `run.measured` that the formulas know.

    Raises:
        ShardwiseError: what of the run the formulas do not know.
        NotImplementedError: always; the cost model is not joined yet.
    """
    raise NotImplementedError(run.id)
