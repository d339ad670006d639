"""Expert-parallel AllToAll that sends a token once to each destination, not once to each expert.

DeepEP (deepseek-ai/DeepEP) and the hybrid dispatcher of Megatron Core send a token once to each
node and forward it inside the node. See DeepSeek-V3 (arXiv 2412.19437, section 3.2.2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from shardwise.arrays import Num
from shardwise.formulas.experts import places_hit
from shardwise.ops.collective import Price, ring_steps
from shardwise.ops.einsum import Array
from shardwise.strategy.span import Span


def is_routed(array: Array) -> bool:
    """Whether an array holds the weights of routed experts, or their gradient."""
    return len(array.dims) == 3 and array.dims[0].name == "E"


@dataclass(frozen=True, slots=True, kw_only=True)
class SendOnce:
    """Kind of AllToAll that sends a token once to each chip, and node, that has its experts.

    Args:
        experts_per_token: number of experts to which each token is routed.
        n_groups, top_groups: number of groups of experts, and of those from which a token's
            experts are chosen (node-limited routing: DeepSeek-V3, section 2.1.2).
    """

    experts_per_token: int
    n_groups: int = 1
    top_groups: int = 1

    def copies(self, n: Num) -> Num:
        """Mean number of places that a token is sent to, of `n` over which experts are divided.

        A token's groups lie in some of the places, and its experts in some of these.
        """
        if not isinstance(n, int | float):
            import numpy as np

            return np.array([self.copies(float(size)) for size in np.ravel(n)]).reshape(np.shape(n))
        per_place = int(self.n_groups // n)  # groups of a place; 0 if a group is in several places
        if per_place == 0:
            reachable = n * self.top_groups / self.n_groups
        else:
            n_others = math.comb(self.n_groups - per_place, self.top_groups)
            reachable = n * (1 - n_others / math.comb(self.n_groups, self.top_groups))
        return float(places_hit(reachable, self.experts_per_token))


def send_once_price(span: Span, kind: SendOnce) -> Price:
    """Price of one `SendOnce` AllToAll.

    It joins the copies of all tokens that are sent: those of `kind.copies` for each token.

    Args:
        span: links between the chips over which the experts are sharded.
    """
    inside = 0.0
    outside = 0.0
    destinations = 1
    for tier in reversed(span.tiers):  # between nodes first, then from node to chip
        destinations *= tier.size
        if tier.size > 1:
            remote_share = (tier.size - 1) / tier.size
            s_per_byte = kind.copies(destinations) * remote_share / tier.bytes_per_s
            inside = max(inside, s_per_byte * tier.is_node)
            outside = max(outside, s_per_byte * (not tier.is_node))
    joined = kind.copies(span.size) * span.size  # bytes, for each byte of the tokens on one chip
    return Price(inside / joined, 0.0, outside / joined, *ring_steps("all_to_all", span))
