"""The hierarchical fit of training rates: all published runs at once, in logarithms.

    log rate = all + architecture + chip + framework        for each rate
    log measured seconds = log predicted seconds + group + noise

Every effect is drawn to zero by its prior, groups (one source, one model, one chip) share an error,
and rows and groups far off count less (Student's t). Predicted seconds are linear enough in the
logarithms of the rates for a few Gauss-Newton steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardwise.estimate.calibration import MATMUL_DTYPES, Calibration, fields_of
from shardwise.estimate.training.layout_step import LayoutStep
from shardwise.estimate.training.run_variant import FusionProfile

# Rate -> (start of the value of all chips, standard deviation of its logarithm). Shares and seconds
# as in `Calibration`; what published runs hardly identify is held close to its start:
# - links, network: bus bandwidth of NCCL's tests over the links' (NVIDIA/nccl-tests; 0.8 to 0.95
#   inside an HGX node, 0.7 to 0.9 over InfiniBand),
# - contention: NCCL occupies up to 32 of an H100's 132 SMs.
PRIORS = {
    "bf16": (0.70, 0.2),
    "fp8": (0.58, 0.2),
    "fp4": (0.42, 0.2),
    "attention": (0.50, 0.2),
    "attention_backward": (0.87, 0.1),
    "scan": (0.05, 0.6),
    "grouped": (0.60, 0.3),
    "hbm": (0.80, 0.12),
    "links": (0.85, 0.07),
    "network": (0.70, 0.15),
    "contention": (0.10, 0.15),
    "host_s": (8e-4, 0.5),
    "kernel_s": (8e-6, 0.5),
    "expert_s": (2e-5, 0.6),
}
RATES = tuple(PRIORS)
LEVELS = ("architecture", "chip", "framework")
# Standard deviation of an effect at each level, and factors on it: seconds vary more than shares,
# links less; chips differ most in their kernels for experts, frameworks in attention.
LEVEL_SD = {"architecture": 0.12, "chip": 0.05, "framework": 0.10}
WIDTHS = {
    "scan": 2.0,
    "links": 0.3,
    "contention": 0.3,
    "host_s": 3.0,
    "kernel_s": 3.0,
    "expert_s": 3.0,
}
LEVEL_WIDTHS = {
    ("chip", "attention"): 1.5,
    ("chip", "grouped"): 3.0,
    **{("chip", dtype): 1.8 for dtype in MATMUL_DTYPES},
    ("framework", "attention"): 2.0,
}
POWER = "power"  # the exponent of watts per FLOP/s in the share of matmuls
POWER_SD = 0.4
NOISE_SD = 0.06
# Of values nearby, those at which groups that the fit leaves out are predicted best.
GROUP_SD = 0.04
FREEDOM = 2.5  # degrees of freedom of Student's t
DELTA = 0.04  # step of the numerical derivatives, in logarithms
MAX_MOVE = 0.3  # of an effect in one iteration
ITERATIONS = 6
REWEIGHTINGS = 8


@dataclass(frozen=True, slots=True)
class Row:
    """One published run: its step, and the members of the levels that it belongs to."""

    id: str
    group: str
    step: LayoutStep
    fusion: FusionProfile
    members: Mapping[str, str]
    log_power: float
    measured_s: float


@dataclass(frozen=True, slots=True)
class Fit:
    """Effects, and the weights with which rows and groups entered them.

    Args:
        effects: logarithm of each column's effect.
        predicted: logarithm of the seconds of each row under the effects.
        jacobian: derivative of `predicted` by each effect, [rows, columns].
    """

    effects: Any
    predicted: Any
    jacobian: Any
    row_weights: Any
    group_weights: Any


class Hierarchy:
    """Rows with the columns of their effects: (level, member, rate)."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows
        self.columns: list[tuple[str, str, str]] = [("all", "", rate) for rate in RATES]
        self.columns.append((POWER, "", POWER))
        for level in LEVELS:
            for member in sorted({row.members[level] for row in rows} - {""}):
                self.columns += [(level, member, rate) for rate in RATES]
        self.position = {column: i for i, column in enumerate(self.columns)}
        self.prior_sd = np.array([_prior_sd(level, rate) for level, _, rate in self.columns])
        self.measured = np.log([row.measured_s for row in rows])
        names = sorted({row.group for row in rows})
        self.groups = np.array([names.index(row.group) for row in rows])
        self.n_groups = len(names)

    def columns_of(self, row: Row, rate: str) -> list[int]:
        """Columns whose sum is the logarithm of a rate of a row, without the power's."""
        keys = [("all", "", rate)]
        keys += [(level, row.members[level], rate) for level in LEVELS]
        return [self.position[key] for key in keys if key in self.position]

    def rates(self, row: Row, effects: Any) -> dict[str, float]:
        """Logarithm of each rate of a row."""
        logs = {}
        for rate in RATES:
            logs[rate] = float(np.log(PRIORS[rate][0]) + effects[self.columns_of(row, rate)].sum())
        for dtype in MATMUL_DTYPES:
            logs[dtype] += float(effects[self.position[POWER, "", POWER]]) * row.log_power
        return logs

    def evaluate(self, effects: Any) -> tuple[Any, Any]:
        """Logarithm of the predicted seconds of all rows, and its derivatives by the effects."""
        predicted = np.zeros(len(self.rows))
        jacobian = np.zeros((len(self.rows), len(self.columns)))
        for i, row in enumerate(self.rows):
            logs = self.rates(row, effects)
            shifted = {rate: np.full(len(RATES) + 1, logs[rate]) for rate in RATES}
            for j, rate in enumerate(RATES):
                shifted[rate][j + 1] += DELTA
            rates = as_calibration(shifted, row.step.system.chip.kind)
            seconds = row.step.time(rates, row.fusion).step_s
            logs_s = np.log(np.broadcast_to(np.asarray(seconds, float), len(RATES) + 1))
            predicted[i] = logs_s[0]
            slopes = (logs_s[1:] - logs_s[0]) / DELTA
            for j, rate in enumerate(RATES):
                jacobian[i, self.columns_of(row, rate)] += slopes[j]
                if rate in MATMUL_DTYPES:
                    jacobian[i, self.position[POWER, "", POWER]] += slopes[j] * row.log_power
        return predicted, jacobian

    def fit(self, rows: Any, start: Any = None) -> Fit:
        """Fit the effects to some rows, a mask; the predictions are those of all rows."""
        effects = np.zeros(len(self.columns)) if start is None else start
        for _ in range(ITERATIONS):
            predicted, jacobian = self.evaluate(effects)
            solution, row_weights, group_weights = self._solve(predicted, jacobian, effects, rows)
            effects = effects + np.clip(solution - effects, -MAX_MOVE, MAX_MOVE)
        predicted, jacobian = self.evaluate(effects)
        return Fit(effects, predicted, jacobian, row_weights, group_weights)

    def _solve(self, predicted: Any, jacobian: Any, effects: Any, rows: Any) -> tuple[Any, ...]:
        """The most likely effects of the linearized model, by reweighted least squares."""
        n = int(rows.sum())
        members = np.zeros((n, self.n_groups))
        members[np.arange(n), self.groups[rows]] = 1
        design = np.hstack([jacobian[rows], members])
        target = (self.measured - predicted + jacobian @ effects)[rows]
        weights = np.ones(n)
        group_weights = np.ones(self.n_groups)
        for _ in range(REWEIGHTINGS):
            precision = np.concatenate([self.prior_sd**-2, group_weights / GROUP_SD**2])
            weighted = design * (weights / NOISE_SD**2)[:, None]
            solution = np.linalg.solve(
                design.T @ weighted + np.diag(precision), weighted.T @ target
            )
            weights = _t_weights(target - design @ solution, NOISE_SD)
            group_weights = _t_weights(solution[len(self.columns) :], GROUP_SD)
        return solution[: len(self.columns)], weights, group_weights

    def left_out(self, fit: Fit, labels: Sequence[str]) -> Any:
        """Logarithm of the seconds of each row when all rows with its label are left out.

        The fit without them is linearized around the fit with them.
        """
        information, moments, blocks = self._information(fit, labels)
        predicted = np.array(fit.predicted)
        for mask, own_information, own_moments in blocks:
            without = np.linalg.solve(information - own_information, moments - own_moments)
            predicted[mask] += fit.jacobian[mask] @ (without - fit.effects)
        return predicted

    def standard_deviations(self, fit: Fit) -> Any:
        """Standard deviation of each effect."""
        labels = [row.group for row in self.rows]
        return np.sqrt(np.diag(np.linalg.inv(self._information(fit, labels)[0])))

    def _information(self, fit: Fit, labels: Sequence[str]) -> tuple[Any, Any, list[Any]]:
        """Information matrix and moments of all rows, and those of the rows of each label."""
        target = self.measured - fit.predicted + fit.jacobian @ fit.effects
        blocks = []
        for label in sorted(set(labels)):
            mask = np.array([other == label for other in labels])
            n_columns = len(self.columns)
            information, moments = np.zeros((n_columns, n_columns)), np.zeros(n_columns)
            for group in set(self.groups[mask]):
                rows = mask & (self.groups == group)
                covariance = np.diag(NOISE_SD**2 / fit.row_weights[rows])
                covariance += GROUP_SD**2 / fit.group_weights[group]
                weighted = np.linalg.solve(covariance, fit.jacobian[rows])
                information += fit.jacobian[rows].T @ weighted
                moments += weighted.T @ target[rows]
            blocks.append((mask, information, moments))
        total = np.diag(self.prior_sd**-2.0) + sum(block[1] for block in blocks)
        return total, sum(block[2] for block in blocks), blocks


def as_calibration(logs: Mapping[str, Any], kind: str) -> Calibration:
    """A calibration with rates whose logarithms are given; arrays for many at once."""
    rates = {rate: np.exp(log) for rate, log in logs.items()}
    return Calibration(name="fit", **fields_of(rates, kind))


def _prior_sd(level: str, rate: str) -> float:
    if level == POWER:
        return POWER_SD
    if level == "all":
        return PRIORS[rate][1]
    width = LEVEL_WIDTHS.get((level, rate), WIDTHS.get(rate, 1.0))
    return LEVEL_SD[level] * width


def _t_weights(residuals: Any, sd: float) -> Any:
    return (FREEDOM + 1) / (FREEDOM + (residuals / sd) ** 2)
