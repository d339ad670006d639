"""More sizes from which a split pays: experts, pipelines, rings of keys and values.

As in `thresholds`, each compares T_math with T_comms and solves for what a planner can choose.
alpha = C / W of the network that carries the split, FLOPs per byte.
"""

from __future__ import annotations

from shardwise.arrays import Num, minimum
from shardwise.strategy.schedules import Times, find

MOST_MICROBATCHES = 1 << 14  # a bubble that needs more is never small


def expert_width(alpha: Num, degree: Num, *, experts_per_token: Num, domain: Num = 0) -> Num:
    """F from which Z-way expert parallelism is compute-bound behind switches. Book §12.

    T_math = 4BkDF/(ZC). Within a domain each chip sends k (Z-1)/Z of its B/Z tokens out and gets
    them back: F > alpha (Z-1)/Z. Over several domains T_comms = 4BD (Z-8)/(WZ) min(8k/Z, 1):
    F > alpha (Z-8)/k min(8k/Z, 1), with 8 for the chips of a domain.

    Args:
        alpha: of the way out of a chip, or out of a whole domain where Z spans several.
        degree: Z.
        experts_per_token: k.
        domain: chips of one domain where Z spans several of them, else 0.
    """
    if not domain:
        return alpha * (degree - 1) / degree
    k = experts_per_token
    return alpha * (degree - domain) / k * minimum(domain * k / degree, 1.0)


def expert_width_on_ring(alpha: Num, degree: Num) -> Num:
    """F > alpha Z / 4: the same on a torus, where an AllToAll takes V / (4 W). Book §3.

    T_comms = 2 x 2BDk / (4W) against T_math = 4BkDF/(ZC).
    """
    return alpha * degree / 4


def ring_tokens(
    alpha: Num, *, n_heads: Num, head_width: Num, kv_bytes: Num, causal: bool = True
) -> Num:
    """Tokens on a chip from which attention hides the next keys and values of a ring.

    t queries against t keys take 2 t^2 N (H + H_v) FLOPs, half of it under a causal mask; t keys
    and values of `kv_bytes` each arrive meanwhile: t > alpha kv_bytes / (2 N (H + H_v)). Whole
    sequences are as many times longer as there are chips in the ring. arXiv 2310.01889, section 3.

    Args:
        alpha: of the links to the neighbours.
        n_heads: N.
        head_width: H + H_v, of a query and of a value.
        kv_bytes: of keys and values of one token in one layer.
    """
    seen = 0.5 if causal else 1.0
    return alpha * kv_bytes / (2 * n_heads * head_width * seen)


def microbatches_for_bubble(
    share: float, *, stages: int, chunks: int = 1, schedule: str = "1f1b"
) -> int | None:
    """The fewest microbatches with which a schedule waits less than a share of the step.

    The three passes of a chunk are taken as equally long. None where no number of them is enough.

    >>> microbatches_for_bubble(0.1, stages=8)
    63
    """
    found = find(schedule)
    times = Times(f=1.0, b=1.0, w=1.0)
    for m in range(1, MOST_MICROBATCHES + 1):
        if not found.legal(stages, m, chunks):
            continue
        shape = (stages, m, chunks)
        if found.bubble(*shape, times) <= share * found.step(*shape, times) * (1 + 1e-9):
            return m
    return None
