"""Tokens on disk: memory-mapped shards of unsigned integers, described by a JSON document.

A folder has `data.json` and the shards `00000.bin`, `00001.bin`, ... Together the shards hold one
stream of documents, each followed by the end token. A training sequence of T tokens and its targets
are T+1 consecutive tokens of a shard. A sequence may thus hold several documents; attention is not
masked between them.
"""

from __future__ import annotations

import bisect
import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shardwise.errors import BadFile, raise_all
from shardwise.runtime.tokenizer import (
    BYTE_TOKENIZER,
    TOKENIZER_FILE,
    ByteTokenizer,
    Tokenizer,
    read_tokenizer,
)

SCHEMA = "shardwise.data/1"
METADATA_FILE = "data.json"
CHECKED_TOKENS = 1 << 24  # read at once to compute a checksum


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSet:
    """The tokenized documents of one folder.

    Args:
        folder: folder with `data.json` and the shards.
        metadata: content of `data.json`.
        shards: memory-mapped arrays of token ids.
    """

    folder: Path
    metadata: Mapping[str, Any]
    shards: tuple[np.ndarray[Any, Any], ...]

    @property
    def vocab(self) -> int:
        """Size of the tokenizer's vocabulary; every token id is smaller."""
        return int(self.metadata["vocab"])

    @property
    def n_tokens(self) -> int:
        return sum(len(shard) for shard in self.shards)

    @property
    def identity(self) -> dict[str, Any]:
        """Tokenizer, number of tokens and checksums: equal for equal content in any folder."""
        return {
            "tokenizer": self.metadata["tokenizer"],
            "tokens": self.n_tokens,
            "crc32": [shard["crc32"] for shard in self.metadata["shards"]],
        }

    def cumulative_sequences(self, seq: int) -> list[int]:
        """Number of sequences of `seq` tokens in the first shard, the first two, and so on."""
        counts = [max(0, (len(shard) - 1) // seq) for shard in self.shards]
        return [int(n) for n in np.cumsum(counts)]

    def verify(self) -> None:
        """Read all tokens and compare their checksums with those that were written.

        Raises:
            BadFile: a shard has other bytes.
        """
        damaged = []
        for entry, shard in zip(self.metadata["shards"], self.shards, strict=True):
            checksum = 0
            for start in range(0, len(shard), CHECKED_TOKENS):
                checksum = zlib.crc32(shard[start : start + CHECKED_TOKENS].data, checksum)
            if checksum != entry["crc32"]:
                damaged.append(
                    f"{self.folder / entry['file']} is damaged: its checksum (crc32) is "
                    f"{checksum}, and {METADATA_FILE} says {entry['crc32']}. Tokenize again."
                )
        raise_all(BadFile, damaged)

    def tokenizer(self) -> Tokenizer:
        """Return the tokenizer that made the tokens.

        Raises:
            BadFile: the tokenizer.json is no longer in the folder.
        """
        if self.metadata["tokenizer"] == BYTE_TOKENIZER:
            return ByteTokenizer()
        return read_tokenizer(self.folder / TOKENIZER_FILE, str(self.metadata["end_text"]))


def open_tokens(path: str) -> TokenSet:
    """Open a folder of tokens that `shardwise data tokenize` wrote.

    Raises:
        BadFile: the folder has no tokens, its data.json cannot be read, or a shard is incomplete.
    """
    folder = Path(path)
    if not os.path.isfile(folder / METADATA_FILE):  # False for a name that is too long, too
        raise BadFile(
            f"{folder} has no tokens ({METADATA_FILE} is missing). Make them with: "
            f"shardwise data tokenize TEXT... --out {folder}"
        )
    try:
        metadata = json.loads((folder / METADATA_FILE).read_text())
        if metadata["schema"] != SCHEMA:
            raise BadFile(
                f'{folder / METADATA_FILE} has schema "{metadata["schema"]}"; this reads "{SCHEMA}"'
            )
        dtype = np.dtype(metadata["dtype"])
        shards = [
            _memory_map(folder / shard["file"], dtype, int(shard["tokens"]))
            for shard in metadata["shards"]
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadFile(f"{folder / METADATA_FILE} cannot be read: {error!r}.") from None
    return TokenSet(folder=folder, metadata=metadata, shards=tuple(shards))


def _memory_map(path: Path, dtype: np.dtype[Any], n_tokens: int) -> np.ndarray[Any, Any]:
    size = path.stat().st_size
    if size != n_tokens * dtype.itemsize:
        raise BadFile(
            f"{path} has {size:,} bytes; {n_tokens:,} tokens of {dtype} are "
            f"{n_tokens * dtype.itemsize:,}. It is incomplete: tokenize again."
        )
    return np.memmap(path, dtype=dtype, mode="r")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSequence:
    """One training sequence with its origin.

    Args:
        origin: (index of the token set in the mixture, index of the sequence in the token set).
        tokens: T+1 token ids: inputs are the first T, targets the last T.
    """

    origin: tuple[int, int]
    tokens: np.ndarray[Any, Any]


class SequenceSource:
    """The training sequences of a token set by index, as a data source of grain.

    Args:
        tokens: the token set.
        seq: tokens per sequence, T.
        set_index: index of the token set in a mixture.
    """

    def __init__(self, tokens: TokenSet, seq: int, set_index: int) -> None:
        self.tokens = tokens
        self.seq = seq
        self.set_index = set_index
        self.cumulative = [0, *tokens.cumulative_sequences(seq)]

    def __len__(self) -> int:
        return self.cumulative[-1]

    def __getitem__(self, index: int) -> TokenSequence:
        shard = bisect.bisect_right(self.cumulative, index) - 1
        start = (index - self.cumulative[shard]) * self.seq
        tokens = self.tokens.shards[shard][start : start + self.seq + 1]
        return TokenSequence(origin=(self.set_index, index), tokens=np.asarray(tokens))
