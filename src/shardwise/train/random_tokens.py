"""Random tokens on disk, for steps whose text does not matter."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import numpy as np

from shardwise.train.tokens import METADATA_FILE, SCHEMA


def write_random_tokens(folder: str, n_tokens: int, vocab: int) -> None:
    """Write a token set of one shard: tokens below `vocab`."""
    tokens = np.random.default_rng(0).integers(vocab, size=n_tokens, dtype=np.uint32)
    data = tokens.tobytes()
    (Path(folder) / "00000.bin").write_bytes(data)
    metadata = {
        "schema": SCHEMA,
        "tokenizer": "random",
        "vocab": vocab,
        "dtype": tokens.dtype.name,
        "tokens": n_tokens,
        "shards": [{"file": "00000.bin", "tokens": n_tokens, "crc32": zlib.crc32(data)}],
    }
    (Path(folder) / METADATA_FILE).write_text(json.dumps(metadata))
