"""Attention mask: which keys a query may attend to."""

from __future__ import annotations

from typing import Any

from shardwise.models import Attention


def attention_mask(attention: Attention, query: Any, key: Any) -> Any:
    """Whether a query attends to a key under a causal mask, with the attention's window or chunks.

    Args:
        query, key: positions in the sequence, as numbers or arrays that broadcast.
    """
    causal = query >= key
    width = attention.window
    if width is None:
        return causal
    if attention.chunked:
        return causal & (query // width == key // width)
    return causal & (query - key < width)
