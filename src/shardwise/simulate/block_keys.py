"""Keys of KV cache blocks by their tokens: equal keys for equal tokens in and before a block."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from hashlib import blake2b

KEY_BYTES = 16  # of 10^18 different blocks, two have the same key with probability 10^-3
TOKEN_BYTES = 4


def block_keys(
    tokens: Sequence[int], block_tokens: int, salt: bytes = b"", first_keys: Sequence[bytes] = ()
) -> list[bytes]:
    """Return the keys of all full blocks, each a hash of its tokens and of the key before it.

    Args:
        tokens: token ids from the start of the text.
        block_tokens: tokens per block.
        salt: at most 64 bytes; texts of different salts share no blocks.
        first_keys: keys of the first blocks, which are not computed again.
    """
    ids = array("I", tokens[len(first_keys) * block_tokens :])
    if sys.byteorder == "big":
        ids.byteswap()
    data = ids.tobytes()
    block_bytes = block_tokens * TOKEN_BYTES
    keys = list(first_keys)
    key = keys[-1] if keys else b""
    for start in range(0, len(data) - block_bytes + 1, block_bytes):
        block = data[start : start + block_bytes]
        key = blake2b(key + block, digest_size=KEY_BYTES, key=salt).digest()
        keys.append(key)
    return keys
