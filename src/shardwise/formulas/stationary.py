"""Weight-stationary inference: weights stay in place, activations move. Book §7, app. B.

The `pope_*` functions count the same layouts as Pope et al. do, "Efficiently Scaling Transformer
Inference", arXiv 2211.05102 (2022-11). B tokens, D model width, F MLP width, N chips, W bandwidth.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.arrays import Num, sqrt


@dataclass(frozen=True, slots=True, kw_only=True)
class Stationary:
    """The best 2D split of a weight-stationary layer.

    Args:
        x: Shards of D.
        yz: Shards of F.
        coefficient: Seconds of its communication in units of BD / (sqrt(N) W).
    """

    x: Num
    yz: Num
    coefficient: Num


def best_2d(n_chips: Num, ratio: Num = 4.0) -> Stationary:
    """X = sqrt(N/2f), YZ = sqrt(2fN), T = 2 sqrt(8f) BD / (sqrt(N) W) with F = fD. Book §7.

    >>> best_2d(128).x, best_2d(128).yz
    (4.0, 32.0)
    """
    x = sqrt(n_chips / (2 * ratio))
    return Stationary(x=x, yz=n_chips / x, coefficient=2 * sqrt(8 * ratio))


def chips_for_2d(ratio: Num = 4.0, *, n_axes: Num = 3) -> Num:
    """N > 2 f M^2: chips above which a 2D layout sends less than a 1D layout on M axes.

    72 for F = 4D on 3 axes.

    >>> chips_for_2d(4.0)
    72.0
    """
    return 2 * ratio * n_axes**2


def pope_1d_s(tokens: Num, d_model: Num, bytes_per_s: Num) -> Num:
    """4BD/W: two collectives of bf16 activations, for any number of chips. arXiv 2211.05102."""
    return 4 * tokens * d_model / bytes_per_s


def pope_2d_s(tokens: Num, d_model: Num, n_chips: Num, bytes_per_s: Num) -> Num:
    """8BD/(sqrt(N) W): the 2D layout with F = 4D at its best split. arXiv 2211.05102."""
    return 8 * tokens * d_model / (sqrt(n_chips) * bytes_per_s)


def pope_2d_chips() -> float:
    """Chips from which `pope_2d_s` is below `pope_1d_s`: 8/sqrt(N) = 4."""
    return float((pope_2d_s(1, 1, 1, 1) / pope_1d_s(1, 1, 1)) ** 2)
