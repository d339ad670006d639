"""Which tokens a token sees, by their places in the sequence."""

from __future__ import annotations

from typing import Any

from shardwise.models import Attention


def visible(attention: Attention, query: Any, key: Any) -> Any:
    """Whether a query at a place sees the key at another, under a causal mask.

    Args:
        query, key: places, numbers or arrays that broadcast.
    """
    seen = query >= key
    width = attention.window
    if width is None:
        return seen
    if attention.chunked:
        return seen & (query // width == key // width)
    return seen & (query - key < width)
