"""A tokenizer as the server needs it: whole texts, and the text and bytes of single tokens."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from shardwise.runtime.tokenizer import BYTES_OF_LETTERS

REPLACEMENT = "\ufffd"  # what bytes are shown as that are no UTF-8
SPACE = "\u2581"  # how SentencePiece writes a space
BYTES = 256  # tokens of a vocabulary of bytes; the next one ends a document
BYTE_PIECE = re.compile(r"<0x([0-9A-F]{2})>")  # how SentencePiece writes a single byte


class Vocabulary(Protocol):
    """Conversion between texts and tokens."""

    def encode(self, text: str) -> list[int]:
        """Tokens of a text; special tokens are recognized, none is added."""
        ...

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        """Text of tokens; `special` to write out special tokens."""
        ...

    def token(self, text: str) -> int | None:
        """The token whose text is exactly this."""
        ...

    def bytes_of(self, token: int) -> bytes:
        """The bytes that a token adds to the text; special tokens are written out."""
        ...


@dataclass(frozen=True, slots=True)
class FileVocabulary:
    """Vocabulary of a tokenizer of the package `tokenizers`, which is `inner`."""

    inner: Any

    def encode(self, text: str) -> list[int]:
        return list(self.inner.encode(text, add_special_tokens=False).ids)

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        return str(self.inner.decode(tokens, skip_special_tokens=not special))

    def token(self, text: str) -> int | None:
        token: int | None = self.inner.token_to_id(text)
        return token

    def bytes_of(self, token: int) -> bytes:
        piece = self.inner.id_to_token(token)
        if piece is None:  # a row of the embedding that no token uses
            return b""
        single = BYTE_PIECE.fullmatch(piece)
        if single:
            return bytes([int(single[1], 16)])
        if piece.startswith(SPACE):  # alone, its text would lack the space
            return str(piece).replace(SPACE, " ").encode()
        text = self.decode([token], special=True)
        if REPLACEMENT in text:  # part of a character, in the alphabet of byte-level tokens
            return bytes(BYTES_OF_LETTERS.get(letter, 0) for letter in piece)
        return text.encode()


@dataclass(frozen=True, slots=True)
class ByteVocabulary:
    """Vocabulary whose tokens are the bytes of UTF-8."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: Sequence[int], *, special: bool = False) -> str:
        written = [self.bytes_of(token) for token in tokens]
        return b"".join(written).decode(errors="replace")

    def token(self, text: str) -> int | None:
        single = text.encode()
        if len(single) == 1:
            return single[0]
        return None

    def bytes_of(self, token: int) -> bytes:
        if token < BYTES:
            return bytes([token])
        return b""
