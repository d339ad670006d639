"""Expert-parallel AllToAll that sends a token once to each destination, not once to each expert.

DeepEP (deepseek-ai/DeepEP) and the hybrid dispatcher of Megatron Core send a token once to each
node and forward it inside the node. See DeepSeek-V3 (arXiv 2412.19437, section 3.2.2).
"""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.formulas.experts import places_hit
from shardwise.ops.collective import Price, ring_steps
from shardwise.ops.einsum import Array
from shardwise.strategy.span import Span


def is_routed(array: Array) -> bool:
    """Whether an array holds the weights of routed experts, or their gradient."""
    return len(array.dims) == 3 and array.dims[0].name == "E"


@dataclass(frozen=True, slots=True, kw_only=True)
class SendOnce:
    """Kind of AllToAll that sends a token once to each chip, and node, that has its experts."""

    experts_per_token: int


def send_once_price(span: Span, experts_per_token: int) -> Price:
    """Price of one `SendOnce` AllToAll, per byte of the tokens on one chip.

    Args:
        span: links between the chips over which the experts are sharded.
        experts_per_token: number of experts to which each token is routed.
    """
    inside = 0.0
    outside = 0.0
    destinations = 1
    for tier in reversed(span.tiers):  # between nodes first, then from node to chip
        destinations *= tier.size
        if tier.size > 1:
            remote_share = (tier.size - 1) / tier.size
            copies = places_hit(destinations, experts_per_token)  # mean destinations of a token
            s_per_byte = copies * remote_share / tier.bytes_per_s
            inside = max(inside, s_per_byte * tier.is_node)
            outside = max(outside, s_per_byte * (not tier.is_node))
    return Price(inside, 0.0, outside, *ring_steps("all_to_all", span))
