"""Sparse attention over a latent cache, in which each query chooses its keys.

DeepSeek-V3.2 (arXiv 2512.02556) and GLM-5: an indexer with small heads scores all earlier keys, and
the query attends to the best of them, in the latent space. In a model it is MLA with a `window`,
the number of keys that a query chooses.
"""

from __future__ import annotations

from shardwise.arrays import Num, maximum
from shardwise.models import Attention, Mla

# The indexer of DeepSeek-V3.2; that of GLM-5 has half the heads. All chips of `tensor` compute it.
INDEX_HEADS = 64
INDEX_DIM = 128
INDEX_KEY_BYTES = INDEX_DIM + 4.0  # a key in fp8, and its scale
# Rows of a tile of matrix units (M of wgmma). Queries have keys of their own, so that the rows of a
# tile are the heads of one query: fewer heads on a chip do not make it faster (FlashMLA's sparse
# kernels take 64 or 128).
QUERY_ROWS = 64


def is_sparse(attention: Attention) -> bool:
    """Whether queries choose their keys."""
    return attention.mla is not None and attention.window is not None


def latent_flops(mla: Mla, n_heads: Num, n_keys: Num) -> Num:
    """FLOPs of the queries of `n_heads` heads on one chip against `n_keys` keys of theirs."""
    dims = 2 * mla.kv_lora_rank + mla.d_rope
    return 2 * n_keys * maximum(n_heads, QUERY_ROWS) * dims


def index_flops(n_pairs: Num) -> Num:
    """FLOPs of the scores of all (query, key) pairs."""
    return 2.0 * n_pairs * INDEX_HEADS * INDEX_DIM
