"""Tokens that go to experts on other chips, each once to a place however many experts it has there.

Sources: DeepEP (deepseek-ai/DeepEP) and the hybrid dispatcher of Megatron Core send a token once to
each node and hand it on inside; DeepSeek-V3 (arXiv 2412.19437, section 3.2.2).
"""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.formulas.experts import places_hit
from shardwise.ops.collective import Price
from shardwise.ops.einsum import Array
from shardwise.strategy.span import Span


def is_routed(array: Array) -> bool:
    """Whether an array is the weights of routed experts, or their gradient."""
    return len(array.dims) == 3 and array.dims[0].name == "E"


@dataclass(frozen=True, slots=True, kw_only=True)
class SendOnce:
    """An exchange that sends a token once to each place with experts of it.

    Args:
        experts: of a token.
    """

    experts: int


def sent_once(span: Span, chosen: int) -> Price:
    """One exchange, per byte of the residual that a chip holds.

    Args:
        span: the links between the chips that share experts.
        chosen: experts of a token.
    """
    inside, outside, places = 0.0, 0.0, 1
    for tier in reversed(span.tiers):  # between nodes first, then from node to chip
        places *= tier.size
        if tier.size > 1:
            away = (tier.size - 1) / tier.size
            slope = places_hit(places, chosen) * away / tier.bytes_per_s
            inside, outside = (
                max(inside, slope * tier.is_node),
                max(outside, slope * (not tier.is_node)),
            )
    return Price(inside, 0.0, outside)
