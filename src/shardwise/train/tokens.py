"""Tokens on disk: shards of unsigned integers that are mapped into memory, and a page about them.

A folder holds `data.json` and `00000.bin`, `00001.bin`, ...: one stream of documents, each ended by
the end token. A sequence of T tokens and its targets is T+1 tokens of a shard, so documents are
packed one behind the other; attention is not cut between them.
"""

from __future__ import annotations

import bisect
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shardwise.errors import BadFile
from shardwise.train.tokenizer import BYTES, FILE, Bytes, Tokenizer, read_tokenizer

SCHEMA = "shardwise.data/1"
ABOUT = "data.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSet:
    """Tokens of one folder.

    Args:
        about: what `data.json` says.
        shards: arrays of tokens that lie on disk.
    """

    folder: Path
    about: Mapping[str, Any]
    shards: tuple[np.ndarray[Any, Any], ...]

    @property
    def vocab(self) -> int:
        """Of its tokenizer: all tokens are below it."""
        return int(self.about["vocab"])

    @property
    def n_tokens(self) -> int:
        return sum(len(shard) for shard in self.shards)

    @property
    def identity(self) -> dict[str, Any]:
        """What says whether two runs read the same: not where it lies."""
        return {
            "tokenizer": self.about["tokenizer"],
            "tokens": self.n_tokens,
            "crc32": [shard["crc32"] for shard in self.about["shards"]],
        }

    def ends(self, seq: int) -> list[int]:
        """Sequences of that length in the first 1, 2, ... shards."""
        counts = [max(0, (len(shard) - 1) // seq) for shard in self.shards]
        return [int(n) for n in np.cumsum(counts)]

    def tokenizer(self) -> Tokenizer:
        """The tokenizer that made the tokens.

        Raises:
            BadFile: its file is no longer in the folder.
        """
        if self.about["tokenizer"] == BYTES:
            return Bytes()
        return read_tokenizer(self.folder / FILE, str(self.about["end_text"]))


def open_tokens(path: str) -> TokenSet:
    """The tokens of a folder that `shardwise data tokenize` wrote.

    Raises:
        BadFile: there are none, or a shard is not as long as it was written.
    """
    folder = Path(path)
    if not (folder / ABOUT).is_file():
        raise BadFile(
            f"{folder} has no {ABOUT}: no tokens. Make them: "
            f"shardwise data tokenize TEXT... --out {folder}"
        )
    try:
        about = json.loads((folder / ABOUT).read_text())
        if about["schema"] != SCHEMA:
            raise BadFile(f'{folder / ABOUT} has schema "{about["schema"]}"; this reads "{SCHEMA}"')
        dtype, listed = np.dtype(about["dtype"]), about["shards"]
        shards = tuple(_mapped(folder / s["file"], dtype, int(s["tokens"])) for s in listed)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadFile(f"{folder / ABOUT} cannot be read: {error!r}.") from None
    return TokenSet(folder=folder, about=about, shards=shards)


def _mapped(path: Path, dtype: np.dtype[Any], n_tokens: int) -> np.ndarray[Any, Any]:
    size = path.stat().st_size
    if size != n_tokens * dtype.itemsize:
        raise BadFile(
            f"{path} has {size:,} bytes; {n_tokens:,} tokens of {dtype} are "
            f"{n_tokens * dtype.itemsize:,}. It is not whole: tokenize again."
        )
    return np.memmap(path, dtype=dtype, mode="r")


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """One sequence, and where it comes from.

    Args:
        origin: (number of its token set, number of the sequence there).
        tokens: T+1 of them.
    """

    origin: tuple[int, int]
    tokens: np.ndarray[Any, Any]


class Sequences:
    """The sequences of a token set by number, as grain reads a source.

    Args:
        which: number of the token set among several.
    """

    def __init__(self, tokens: TokenSet, seq: int, which: int) -> None:
        self.tokens, self.seq, self.which = tokens, seq, which
        self.ends = tokens.ends(seq)

    def __len__(self) -> int:
        return self.ends[-1] if self.ends else 0

    def __getitem__(self, index: int) -> Drawn:
        shard = bisect.bisect_right(self.ends, index)
        before = self.ends[shard - 1] if shard else 0
        start = (index - before) * self.seq
        found = self.tokens.shards[shard][start : start + self.seq + 1]
        return Drawn(origin=(self.which, index), tokens=np.asarray(found))
