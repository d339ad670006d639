"""Weight-stationary inference: weights stay in place, activations move. Book §7, app. B.

Letters: B tokens, D model width, F MLP width, f = F / D, N chips, W bytes/s. A 1D layout shards the
weights over F only, a 2D layout over D and F. The `pope_*` functions count these layouts as Pope et
al. do, "Efficiently Scaling Transformer Inference", arXiv 2211.05102 (2022-11).
"""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.arrays import Num, sqrt


@dataclass(frozen=True, slots=True, kw_only=True)
class Stationary:
    """The 2D layout of a weight-stationary layer with the least communication.

    Args:
        x: Number of shards of D.
        yz: Number of shards of F.
        coefficient: Seconds of communication divided by BD / (sqrt(N) W).
    """

    x: Num
    yz: Num
    coefficient: Num


def best_2d(n_chips: Num, ratio: Num = 4.0) -> Stationary:
    """Find the best 2D layout of N chips. Book §7.

    X = sqrt(N/2f), YZ = sqrt(2fN), and communication takes 2 sqrt(8f) BD / (sqrt(N) W).

    Args:
        n_chips: N.
        ratio: f = F / D.

    >>> best_2d(128).x, best_2d(128).yz
    (4.0, 32.0)
    """
    x = sqrt(n_chips / (2 * ratio))
    return Stationary(x=x, yz=n_chips / x, coefficient=2 * sqrt(8 * ratio))


def chips_for_2d(ratio: Num = 4.0, *, n_axes: Num = 3) -> Num:
    """Chips above which a 2D layout sends fewer bytes than a 1D layout on M axes: 2 f M^2.

    >>> chips_for_2d(4.0)
    72.0
    """
    return 2 * ratio * n_axes**2


def pope_1d_s(tokens: Num, d_model: Num, bytes_per_s: Num) -> Num:
    """Seconds of communication of a layer in the 1D layout: 4BD/W. arXiv 2211.05102.

    Two collectives of bf16 activations, for any number of chips.
    """
    return 4 * tokens * d_model / bytes_per_s


def pope_2d_s(tokens: Num, d_model: Num, n_chips: Num, bytes_per_s: Num) -> Num:
    """Seconds of communication of a layer in the best 2D layout: 8BD/(sqrt(N) W) for F = 4D.

    arXiv 2211.05102.
    """
    return 8 * tokens * d_model / (sqrt(n_chips) * bytes_per_s)


def pope_2d_chips() -> float:
    """Chips above which `pope_2d_s` is below `pope_1d_s`: 8/sqrt(N) = 4."""
    return float((pope_2d_s(1, 1, 1, 1) / pope_1d_s(1, 1, 1)) ** 2)
