"""Tokenization of documents into shards on disk."""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shardwise.errors import BadFile
from shardwise.train.sources import Sources
from shardwise.train.tokenizer import END_TOKENS, FILE, FileTokenizer, Tokenizer
from shardwise.train.tokens import ABOUT, SCHEMA

SHARD_TOKENS = 1 << 27  # 128 Mi: 256 MiB in 16 bits


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeSummary:
    """Counts of a finished tokenization.

    Args:
        folder: with the shards.
        tokenizer: its name.
        vocab: size of the vocabulary.
        documents: number of documents.
        tokens: number of tokens.
        shards: number of shards.
        skipped: files that are not UTF-8.
    """

    folder: str
    tokenizer: str
    vocab: int
    documents: int
    tokens: int
    shards: int
    skipped: tuple[str, ...]


def tokenize(
    sources: Sources,
    tokenizer: Tokenizer,
    out: str,
    *,
    file: Path | None = None,
    shard_tokens: int = SHARD_TOKENS,
    on_tokens: Callable[[int], None] = lambda n: None,
) -> TokenizeSummary:
    """Write the tokens of all documents into a folder.

    `data.json` is written last: a folder without it is not a token set.

    Args:
        sources: the documents.
        tokenizer: encodes them.
        out: the folder; created if missing.
        file: of the tokenizer, copied to the folder.
        shard_tokens: tokens per shard.
        on_tokens: receives the number of tokens so far.

    Raises:
        BadFile: the folder has tokens already or cannot be written; no document has text.
    """
    folder = Path(out)
    if (folder / ABOUT).exists():
        raise BadFile(f"{folder} has tokens already. Name another folder, or remove it.")
    dtype: np.dtype[Any] = np.dtype(np.uint32)
    if tokenizer.vocab <= 1 << 16:
        dtype = np.dtype(np.uint16)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        writer = _ShardWriter(folder, dtype, shard_tokens)
        n_documents = 0
        for document in sources.documents():
            for chunk in document:
                writer.add(tokenizer.encode(chunk))
            writer.add([tokenizer.end])
            n_documents += 1
            on_tokens(writer.n_tokens)
        writer.flush()
        if not n_documents:
            raise BadFile(f"no document was read from {len(sources.files)} files.")
        about = _about(tokenizer, dtype, n_documents, writer)
        if file is not None:
            shutil.copyfile(file, folder / FILE)
        (folder / ABOUT).write_text(json.dumps(about, indent=1) + "\n")
    except OSError as error:
        raise BadFile(f"{folder}: {error.strerror}. No tokens were written.") from None
    return TokenizeSummary(
        folder=out,
        tokenizer=tokenizer.name,
        vocab=tokenizer.vocab,
        documents=n_documents,
        tokens=writer.n_tokens,
        shards=len(writer.shards),
        skipped=tuple(str(path) for path in sources.skipped),
    )


def _about(
    tokenizer: Tokenizer, dtype: np.dtype[Any], n_documents: int, writer: _ShardWriter
) -> dict[str, Any]:
    """The content of `data.json`."""
    end_text = ""
    if isinstance(tokenizer, FileTokenizer):
        end_text = str(tokenizer.inner.id_to_token(tokenizer.end))
        for name in reversed(END_TOKENS):
            if tokenizer.inner.token_to_id(name) == tokenizer.end:
                end_text = name
    return {
        "schema": SCHEMA,
        "tokenizer": tokenizer.name,
        "vocab": tokenizer.vocab,
        "end": tokenizer.end,
        "end_text": end_text,
        "dtype": dtype.name,
        "documents": n_documents,
        "tokens": writer.n_tokens,
        "shards": writer.shards,
    }


class _ShardWriter:
    """Writes a stream of tokens as shards of equal length."""

    def __init__(self, folder: Path, dtype: np.dtype[Any], shard_tokens: int) -> None:
        self.folder = folder
        self.dtype = dtype
        self.shard_tokens = shard_tokens
        self.shards: list[dict[str, Any]] = []
        self.n_tokens = 0
        self._buffer: list[np.ndarray[Any, Any]] = []
        self._n_buffered = 0

    def add(self, tokens: list[int]) -> None:
        array = np.asarray(tokens, self.dtype)
        self.n_tokens += len(array)
        while len(array):
            room = self.shard_tokens - self._n_buffered
            self._buffer.append(array[:room])
            self._n_buffered += len(array[:room])
            array = array[room:]
            if self._n_buffered == self.shard_tokens:
                self.flush()

    def flush(self) -> None:
        """Write the buffered tokens as a shard."""
        if not self._n_buffered:
            return
        data = np.concatenate(self._buffer).tobytes()
        name = f"{len(self.shards):05d}.bin"
        (self.folder / name).write_bytes(data)
        self.shards.append({"file": name, "tokens": self._n_buffered, "crc32": zlib.crc32(data)})
        self._buffer = []
        self._n_buffered = 0
