"""The memory's bandwidth, and what a decode step has to read of it.

A step reads each weight once, but of the embedding table only what the unembedding reads, and the
keys and values of all tokens of its sequences once.
"""

from __future__ import annotations

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

READ_BYTES = 256 * 2**20  # by each thread, several times the caches
# Bytes of a number: in matrices of layers, in the unembedding, and in the KV cache.
WIDTHS = {
    "shardwise fp32": (4, 4, 4),
    "shardwise bf16": (2, 2, 4),
    "shardwise int8": (1, 2, 4),
    "transformers float32": (4, 4, 4),
    "transformers bfloat16": (2, 2, 2),
    "llama.cpp F32": (4, 4, 2),
    "llama.cpp F16": (2, 2, 2),
    "llama.cpp BF16": (2, 2, 2),
    "llama.cpp Q8_0": (34 / 32, 34 / 32, 2),
}


class Bandwidth:
    """Bytes a second that all cores read together."""

    def __init__(self) -> None:
        n = os.cpu_count() or 1
        self._arrays = [np.ones(READ_BYTES // 4, np.float32) for _ in range(n)]
        self._pool = ThreadPoolExecutor(n)

    def measure(self) -> float:
        """Sum the squares of arrays, one by each thread."""
        start = time.perf_counter()
        list(self._pool.map(lambda x: np.vdot(x, x), self._arrays))
        return READ_BYTES * len(self._arrays) / (time.perf_counter() - start)


def step_bytes(model: Path, kind: str, dtype: str, n_sequences: int, length: float) -> float:
    """Bytes that a decode step of a side reads.

    Args:
        model: folder of a Llama.
        kind: the side's engine.
        dtype: of its weights, as the side calls it.
        length: mean number of tokens of a sequence.
    """
    config = json.loads((model / "config.json").read_text())
    layers, d_model = config["num_hidden_layers"], config["hidden_size"]
    d_head = config.get("head_dim") or d_model // config["num_attention_heads"]
    kv_width = config["num_key_value_heads"] * d_head
    q_width = config["num_attention_heads"] * d_head
    attention = 2 * d_model * (q_width + kv_width)
    matrices = layers * (attention + 3 * d_model * config["intermediate_size"])
    unembedding = config["vocab_size"] * d_model
    cached = n_sequences * length * layers * 2 * kv_width
    numbers = (matrices, unembedding, cached)
    return float(sum(n * b for n, b in zip(numbers, WIDTHS[f"{kind} {dtype}"], strict=True)))
