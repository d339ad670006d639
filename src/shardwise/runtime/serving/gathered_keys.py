"""Whole keys and values of the sequences of a pass, gathered from the chips that share them.

Chips that share the tokens of each sequence either gather their queries, attend with all of them to
the keys that they have, and scatter sums of the outputs, or they gather the keys, and attend with
their own heads. A prompt has so many queries that its keys are less.
"""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
from jax import lax

from shardwise.runtime.serving.paged_cache import Cache, NewTokens, numbers

Array = jax.Array


def gathers_keys(q_BTNH: Array, cache: Cache, tokens: NewTokens) -> bool:
    """Whether chips that share the tokens of sequences gather these, and not their queries.

    What a chip receives is compared: keys and values of whole block tables with the queries of the
    other chips and as many outputs.
    """
    layout = tokens.kv_layout
    n_keys = tokens.tables_BM.size * tokens.block_tokens // layout.n_context
    n_cached = n_keys * sum(x.shape[1] * x.shape[-1] for x in map(numbers, cache.values()))
    return bool(layout.query_axes) and n_cached < 2 * layout.n_copies * q_BTNH.size


def whole_sequences(cache: Cache, tokens: NewTokens, first_block: Array) -> tuple[Cache, NewTokens]:
    """The blocks of the sequences alone, whole on each chip of `query_axes`.

    Returns:
        (cache that begins with the first block of the first sequence, tokens with their tables)
    """
    layout = tokens.kv_layout
    block_I = first_block + tokens.tables_BM.reshape(-1)

    def whole(x: Array) -> Array:
        return lax.all_gather(x.at[block_I].get(mode="clip"), layout.query_axes, axis=2, tiled=True)

    tables_BM = jnp.arange(tokens.tables_BM.size).reshape(tokens.tables_BM.shape)
    of_heads = replace(layout, split="copied")
    return jax.tree.map(whole, cache), replace(tokens, tables_BM=tables_BM, kv_layout=of_heads)
