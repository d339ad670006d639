"""How much own runs correct the predictions of other runs: the errors behind `--calibrate`.

    python bench/own_runs.py

Published runs of the same source, model and chip are taken as one user's. Some of them, drawn at
random, are the own runs; the others are predicted by the planner's formulas, times the geometric
mean of measured over predicted of the own runs, to the power of a weight. Each group counts once.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterator, Sequence

from shardwise.estimate.calibration import own_factor
from shardwise.validate import Run, load
from shardwise.validate.training.predict import Prediction, predict

N_OWN = (1, 2, 3, 5)
N_DRAWS = 40
QUANTILES = {"median": 0.5, "80 %": 0.8}


def ratios() -> list[list[float]]:
    """Measured over predicted seconds of the runs of each group that has several."""
    groups: dict[str, list[float]] = {}
    for run in load():
        row = predict(run) if isinstance(run, Run) else None
        if isinstance(row, Prediction):
            groups.setdefault(row.group, []).append(row.measured / row.predicted)
    return [group for group in groups.values() if len(group) > 1]


def errors(
    groups: Sequence[Sequence[float]], n_own: int, kind: str
) -> Iterator[tuple[float, float]]:
    """(error of another run, its weight) after `n_own` own runs."""
    rng = random.Random(0)
    for group in groups:
        if len(group) <= n_own:
            continue
        for _ in range(N_DRAWS):
            own = set(rng.sample(range(len(group)), n_own))
            ratio = statistics.geometric_mean(group[i] for i in own)
            factor = {"none": 1.0, "ratio": ratio, "weighted": own_factor(ratio, n_own)}[kind]
            rest = [group[i] for i in range(len(group)) if i not in own]
            for measured in rest:
                yield abs(factor / measured - 1), 1 / len(rest)


def quantile(values: Sequence[tuple[float, float]], share: float) -> float:
    """The smallest error such that `share` of the weights are at most that large."""
    rest = share * math.fsum(weight for _, weight in values)
    for error, weight in sorted(values):
        rest -= weight
        if rest <= 0:
            return error
    return max(values)[0]


def main() -> None:
    """Print the errors without own runs, with their whole ratio, and with the weight in use."""
    groups = ratios()
    print(f"{len(groups)} groups of several runs")
    print("own runs   correction   " + "   ".join(f"{name:>7}" for name in QUANTILES))
    for n_own in N_OWN:
        for kind in ("none", "ratio", "weighted"):
            values = list(errors(groups, n_own, kind))
            cells = "   ".join(f"{quantile(values, share):7.1%}" for share in QUANTILES.values())
            print(f"{n_own:8}   {kind:10}   {cells}")


if __name__ == "__main__":
    main()
