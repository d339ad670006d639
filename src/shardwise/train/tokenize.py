"""Text -> shards of tokens, document by document."""

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
from shardwise.train.tokenizer import END_TOKENS, FILE, FromFile, Tokenizer
from shardwise.train.tokens import ABOUT, SCHEMA

SHARD_TOKENS = 1 << 27  # 128 Mi: 256 MiB in 16 bits


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokenized:
    """What was written."""

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
) -> Tokenized:
    """Write the tokens of all documents into a folder. `data.json` comes last: without it there is
    no token set.

    Args:
        file: of the tokenizer, which is copied beside the tokens.
        on_tokens: told the tokens so far.

    Raises:
        BadFile: the folder has tokens already or cannot be written; no document has text.
    """
    folder = Path(out)
    if (folder / ABOUT).exists():
        raise BadFile(f"{folder} has tokens already. Name another folder, or remove it.")
    wide = np.dtype(np.uint16 if tokenizer.vocab <= 1 << 16 else np.uint32)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        writer = _Writer(folder, wide, shard_tokens)
        documents = 0
        for document in sources.documents():
            for piece in document:
                writer.add(tokenizer.encode(piece))
            writer.add([tokenizer.end])
            documents += 1
            on_tokens(writer.total)
        writer.flush()
        if not documents:
            raise BadFile(f"no document was read from {len(sources.files)} files.")
        about = _about(tokenizer, wide, documents, writer)
        if file is not None:
            shutil.copyfile(file, folder / FILE)
        (folder / ABOUT).write_text(json.dumps(about, indent=1) + "\n")
    except OSError as error:
        raise BadFile(f"{folder}: {error.strerror}. No tokens were written.") from None
    return Tokenized(
        folder=out,
        tokenizer=tokenizer.name,
        vocab=tokenizer.vocab,
        documents=documents,
        tokens=writer.total,
        shards=len(writer.shards),
        skipped=tuple(str(path) for path in sources.skipped),
    )


def _about(
    tokenizer: Tokenizer, wide: np.dtype[Any], documents: int, writer: _Writer
) -> dict[str, Any]:
    end_text = ""
    if isinstance(tokenizer, FromFile):
        end_text = next(
            (n for n in END_TOKENS if tokenizer.inner.token_to_id(n) == tokenizer.end),
            str(tokenizer.inner.id_to_token(tokenizer.end)),
        )
    return {
        "schema": SCHEMA,
        "tokenizer": tokenizer.name,
        "vocab": tokenizer.vocab,
        "end": tokenizer.end,
        "end_text": end_text,
        "dtype": wide.name,
        "documents": documents,
        "tokens": writer.total,
        "shards": writer.shards,
    }


class _Writer:
    """Tokens in, shards out."""

    def __init__(self, folder: Path, wide: np.dtype[Any], shard_tokens: int) -> None:
        self.folder, self.wide, self.shard_tokens = folder, wide, shard_tokens
        self.shards: list[dict[str, Any]] = []
        self.total = 0
        self._held: list[np.ndarray[Any, Any]] = []
        self._n_held = 0

    def add(self, tokens: list[int]) -> None:
        array = np.asarray(tokens, self.wide)
        self.total += len(array)
        while len(array):
            room = self.shard_tokens - self._n_held
            self._held.append(array[:room])
            self._n_held += len(array[:room])
            array = array[room:]
            if self._n_held == self.shard_tokens:
                self.flush()

    def flush(self) -> None:
        """Write what is held as a shard."""
        if not self._n_held:
            return
        data = np.concatenate(self._held).tobytes()
        name = f"{len(self.shards):05d}.bin"
        (self.folder / name).write_bytes(data)
        self.shards.append({"file": name, "tokens": self._n_held, "crc32": zlib.crc32(data)})
        self._held, self._n_held = [], 0
