"""What caches take: windows alone, or whole sequences where the engine keeps them."""

from __future__ import annotations

import pytest

import shardwise as sw
from shardwise.models.count import kv_bytes_per_token

MODEL = sw.model("gemma3-4b")  # five of six layers have a window of 1,024 tokens
CONTEXT, BATCH = 8192, 16


def kv_cache(engine: str) -> float:
    """Bytes of the cache on a chip of four that share its heads."""
    job = sw.Serve(context=CONTEXT, batch=BATCH, engine=engine)
    return sw.plan(MODEL, sw.hardware("v5p:2x2x1"), job, {"tensor": 4}).memory.kv_cache


def test_our_engine_keeps_whole_sequences() -> None:
    whole = kv_bytes_per_token(MODEL) * CONTEXT * BATCH / 4
    assert kv_cache("shardwise") == pytest.approx(whole)


def test_other_engines_keep_windows() -> None:
    assert kv_cache("vllm") < 0.4 * kv_cache("shardwise")
