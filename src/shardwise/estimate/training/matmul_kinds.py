"""Kinds of matmuls that are priced in different ways, and the scores of unfused attention."""

from __future__ import annotations

from collections.abc import Mapping

from shardwise.arrays import Num
from shardwise.ops.program import Matmul, Transfer

EMBEDDING_AND_HEAD = ("embed", "unembed")
# Bytes of HBM traffic per score without flash attention: a 16-bit score passes through scale, mask,
# softmax and dropout, whose mask is written too.
SCORE_BYTES = 13.0


def is_core(matmul: Matmul) -> bool:
    """Whether a matmul is inside a kernel for attention or for a scan, which stays in 16 bits."""
    return matmul.term.block == "core"


def is_attention(matmul: Matmul) -> bool:
    """Whether a matmul computes attention scores, or their product with the values."""
    return is_core(matmul) and matmul.term.module == "attn"


def is_scan(matmul: Matmul) -> bool:
    """Whether a matmul belongs to the scan of a Mamba block."""
    return is_core(matmul) and matmul.term.module == "mamba"


def is_embedding_or_head(work: Matmul | Transfer | None) -> bool:
    """Whether a matmul or collective belongs to embedding or unembedding; False for None."""
    return work is not None and work.term.module in EMBEDDING_AND_HEAD


def score_bytes(matmul: Matmul, mesh: Mapping[str, Num]) -> Num:
    """Bytes of HBM traffic of the scores around one matmul without flash attention.

    The scores are written, masked, normalized, dropped out and read between two matmuls; half of
    the bytes are attributed to each.
    """
    local = matmul.program.local
    scores = next(a for a in (*local.inputs, local.output) if a.name in ("s", "ds"))
    return scores.local_elements(matmul.sizes, mesh) * SCORE_BYTES / 2
