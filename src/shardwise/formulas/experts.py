"""Experts of an MoE: how many a batch activates, and what expert parallelism requires.

Letters: E experts, k of them chosen by each token, Z the degree of expert parallelism, B tokens,
D model width, F width of one expert, C FLOP/s of a chip, W bytes/s of the network that carries the
AllToAll, alpha = C / W in FLOPs per byte. Book §3 (torus), §7 (experts activated in decoding), §12
(switches).
"""

from __future__ import annotations

import functools

from shardwise.arrays import Num, log2, maximum, minimum

POPULARITY_CLASSES = 16
# Experts of a class at least, for the busiest chip: few experts are about equally popular, as those
# of Mixtral (arXiv 2401.04088, section 5).
MIN_CLASS_EXPERTS = 8


def hit_share(experts: Num, chosen: Num, tokens: Num) -> Num:
    """Expected share of the E experts that at least one token chooses: 1 - (1 - k/E)^tokens.

    Every token chooses k experts, each with equal probability.

    >>> round(hit_share(256, 8, 16), 3)
    0.398
    """
    return 1 - (1 - chosen / experts) ** tokens


def skewed_hit_share(experts: Num, chosen: Num, tokens: Num, exponent: float = 1.0) -> Num:
    """`hit_share` where experts are not equally popular: Zipf's law over their ranks.

    The expert of rank r is chosen in proportion to r^-exponent. Experts are divided into
    `POPULARITY_CLASSES` classes of equal size, by rank.

    >>> round(skewed_hit_share(128, 8, 32), 3), round(skewed_hit_share(128, 8, 32, 0.0), 3)
    (0.63, 0.873)
    """
    share: Num = 0.0
    for popularity in _popularities(exponent, POPULARITY_CLASSES):
        probability = minimum(1.0, popularity * chosen / experts)
        share = share + (1 - (1 - probability) ** tokens) / POPULARITY_CLASSES
    return share


def busiest_share(experts: int, shards: Num, exponent: float = 1.0) -> Num:
    """Expected tokens of the busiest of several chips, over their mean, by Zipf's law.

    E experts of unequal popularity are divided among Z chips at random. The sum of E / Z of them
    varies as that of a sample without replacement; the largest of Z such sums is about
    0.78 (log2 Z)^0.8 standard deviations above their mean (within 5 % of simulations for 128 to 512
    experts on 2 to 64 chips).

    >>> round(busiest_share(128, 8), 2), busiest_share(128, 1), busiest_share(8, 8)
    (1.69, 1.0, 1.0)
    """
    n_classes = int(min(POPULARITY_CLASSES, max(1, experts // MIN_CLASS_EXPERTS)))
    variance = sum((p - 1) ** 2 for p in _popularities(exponent, n_classes)) / n_classes
    of_sum = variance * (shards - 1) / maximum(experts - 1, 1)
    return 1 + 0.78 * log2(shards) ** 0.8 * of_sum**0.5


@functools.cache  # asked for at every product of experts
def _popularities(exponent: float, n_classes: int) -> tuple[float, ...]:
    """Popularity of each class of experts, by rank, over their mean."""
    weights = [((i + 0.5) / n_classes) ** -exponent for i in range(n_classes)]
    mean = sum(weights) / n_classes
    return tuple(weight / mean for weight in weights)


def places_hit(places: Num, chosen: Num) -> Num:
    """Expected number of chips, of n, to which one token is sent: n (1 - (1 - 1/n)^k).

    Each of its k experts is on any of the n chips with equal probability.

    >>> places_hit(8, 1)
    1.0
    >>> round(places_hit(8, 8), 2)
    5.25
    """
    return places * hit_share(places, 1, chosen)


def ragged_share(experts_per_token: Num, n: Num) -> Num:
    """Bytes of routing each token to k of n chips, over those of sending it to all. Book §12.

    min(k/n, 1).
    """
    return minimum(experts_per_token / n, 1.0)


def expert_width(alpha: Num, degree: Num, *, experts_per_token: Num, domain: Num = 0) -> Num:
    """F above which Z-way expert parallelism is compute-bound behind switches. Book §12.

    T_math = 4BkDF/(ZC). Within one NVLink domain each chip sends k (Z-1)/Z of its B/Z tokens out
    and gets them back: F > alpha (Z-1)/Z. Over several domains of 8 chips
    T_comms = 4BD (Z-8)/(WZ) min(8k/Z, 1): F > alpha (Z-8)/k min(8k/Z, 1).

    Args:
        alpha: C / W, with W the bandwidth out of a chip, or out of a whole domain if Z spans
            several domains.
        degree: Z.
        experts_per_token: k.
        domain: chips of one domain if Z spans several, else 0.

    Returns:
        F, width of an expert with two matrices.
    """
    if not domain:
        return alpha * (degree - 1) / degree
    routed_share = ragged_share(domain * experts_per_token, degree)
    return alpha * (degree - domain) / experts_per_token * routed_share


def expert_width_on_ring(alpha: Num, degree: Num) -> Num:
    """F above which Z-way expert parallelism is compute-bound on one torus axis. Book §3.

    alpha Z / 4: an AllToAll of V bytes takes V / (4 W) on a ring, so that dispatch and combine take
    T_comms = 2 x 2BDk / (4W), against T_math = 4BkDF/(ZC).
    """
    return alpha * degree / 4
