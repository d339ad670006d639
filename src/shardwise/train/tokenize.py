"""Tokenization of documents into the shards that `tokens.open_tokens` reads."""

from __future__ import annotations

import json
import shutil
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shardwise.errors import BadFile, file_error
from shardwise.runtime.tokenizer import END_TOKENS, TOKENIZER_FILE, FileTokenizer, Tokenizer
from shardwise.train.sources import Sources
from shardwise.train.tokens import METADATA_FILE, SCHEMA

SHARD_TOKENS = 1 << 27  # 256 MiB for tokens of 16 bits


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizeSummary:
    """Counts of a finished tokenization.

    Args:
        folder: folder with the shards.
        tokenizer: name of the tokenizer.
        vocab: size of the vocabulary.
        skipped: paths of files that were skipped because they are not UTF-8.
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
    """Tokenize all documents and write the tokens into a folder.

    `data.json` is written last, so that an interrupted call leaves no valid token set.

    Args:
        tokenizer: converts their text to tokens.
        out: folder to write to; created if missing.
        file: the tokenizer.json, which is copied to the folder; None for bytes.
        shard_tokens: tokens per shard; the last shard may have fewer.
        on_tokens: receives the number of tokens so far, after each document.

    Raises:
        BadFile: the folder has tokens already or cannot be written, or there is no text.
    """
    folder = Path(out)
    if (folder / METADATA_FILE).exists():
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
        if writer.n_tokens == n_documents:  # end tokens only
            raise BadFile(sources.why_no_text())
        writer.flush()
        metadata = _metadata(tokenizer, dtype, n_documents, writer)
        if file is not None:
            shutil.copyfile(file, folder / TOKENIZER_FILE)
        (folder / METADATA_FILE).write_text(json.dumps(metadata, indent=1) + "\n")
    except OSError as error:
        raise file_error(folder, error, "No tokens were written.") from None
    return TokenizeSummary(
        folder=out,
        tokenizer=tokenizer.name,
        vocab=tokenizer.vocab,
        documents=n_documents,
        tokens=writer.n_tokens,
        shards=len(writer.shards),
        skipped=tuple(str(path) for path in sources.skipped),
    )


def _metadata(
    tokenizer: Tokenizer, dtype: np.dtype[Any], n_documents: int, writer: _ShardWriter
) -> dict[str, Any]:
    """Return the content of `data.json`."""
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
    """Writes a stream of tokens as shards of `shard_tokens` each; the last one may be shorter."""

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
