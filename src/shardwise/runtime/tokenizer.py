"""Tokenizers: one token per UTF-8 byte, or a `tokenizer.json` of the `tokenizers` package."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from shardwise.errors import BadFile, BadInput, MissingExtra

TOKENIZER_FILE = "tokenizer.json"
BYTE_TOKENIZER = "bytes"
BYTE_END = "<|endoftext|>"  # the end token of `ByteTokenizer` in a tokenizer.json

# Texts of the end-of-document token in published tokenizers; the first match is used.
END_TOKENS: tuple[str, ...] = (
    "<|end_of_text|>",
    "<|endoftext|>",
    "</s>",
    "<eos>",
    "<|eos|>",
    "[SEP]",
)


class Tokenizer(Protocol):
    """Conversion between text and tokens."""

    @property
    def name(self) -> str:
        """Name of the tokenizer: `bytes`, or `tokenizer.json` if it was read from a file."""
        ...

    @property
    def vocab(self) -> int:
        """Number of embedding rows that the tokens need: the highest token id plus 1."""
        ...

    @property
    def end(self) -> int:
        """Id of the token that ends a document."""
        ...

    def encode(self, text: str) -> list[int]:
        """Convert a text to token ids, without an end token."""
        ...

    def decode(self, tokens: list[int]) -> str:
        """Convert token ids to text."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteTokenizer:
    """Tokenizer whose token ids are the byte values of UTF-8; token 256 ends a document.

    >>> ByteTokenizer().encode("né")
    [110, 195, 169]
    """

    name: str = BYTE_TOKENIZER
    vocab: int = 257
    end: int = 256

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: list[int]) -> str:
        return bytes(token for token in tokens if token < self.end).decode(errors="replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTokenizer:
    """A tokenizer read from a `tokenizer.json`.

    Args:
        inner: tokenizer object of the `tokenizers` package.
        end: id of the token that ends a document.
        vocab: the highest token id plus 1.
        name: name of the file.
    """

    inner: Any
    end: int
    vocab: int
    name: str = TOKENIZER_FILE

    def encode(self, text: str) -> list[int]:
        return list(self.inner.encode(text, add_special_tokens=False).ids)

    def decode(self, tokens: list[int]) -> str:
        return str(self.inner.decode(tokens))


def read_tokenizer(path: Path, end: str = "") -> FileTokenizer:
    """Read a tokenizer from its file.

    Args:
        path: path of the `tokenizer.json`.
        end: text of the end token; empty to use the first of `END_TOKENS` in the vocabulary.

    Raises:
        BadFile: the file is missing, or is not a tokenizer.
        BadInput: the end token is not in the vocabulary.
        MissingExtra: the package `tokenizers` is not installed.
    """
    inner = open_tokenizer(path, extra="train")
    names = END_TOKENS
    if end:
        names = (end,)
    for name in names:
        token = inner.token_to_id(name)
        if token is not None:
            return file_tokenizer(inner, int(token))
    if end:
        raise BadInput(f'{path} has no token "{end}".')
    raise BadInput(
        f"the end token of {path} is unknown: it has none of {', '.join(END_TOKENS)}. "
        "Name it with --end TOKEN."
    )


def open_tokenizer(path: Path, *, extra: str) -> Any:
    """Read the tokenizer object of the `tokenizers` package from its file.

    Args:
        path: path of the `tokenizer.json`.
        extra: extra of this package that installs `tokenizers`.

    Raises:
        BadFile: the file is missing, or is not a tokenizer.
        MissingExtra: the package `tokenizers` is not installed.
    """
    try:
        from tokenizers import Tokenizer as Inner
    except ImportError:
        raise MissingExtra(
            f"{path} needs the package tokenizers: pip install 'shardwise[{extra}]'"
        ) from None
    if not path.is_file():
        raise BadFile(f"no file {path}.")
    try:
        inner = Inner.from_file(str(path))
    except Exception as error:  # the package raises nothing narrower
        raise BadFile(f"{path} is not a tokenizer.json: {error}.") from None
    # A tokenizer.json may turn both on: long documents would be cut, short ones padded.
    inner.no_truncation()
    inner.no_padding()
    return inner


def file_tokenizer(inner: Any, end: int, name: str = TOKENIZER_FILE) -> FileTokenizer:
    """Wrap a tokenizer object of the `tokenizers` package; arguments as in `FileTokenizer`."""
    # Token ids may have gaps, so the number of tokens does not give the highest id.
    highest = max(inner.get_vocab(with_added_tokens=True).values())
    return FileTokenizer(inner=inner, end=end, vocab=highest + 1, name=name)


def byte_level_file() -> str:
    """The tokenizer.json of `ByteTokenizer`.

    Raises:
        MissingExtra: the package `tokenizers` is not installed.
    """
    try:
        from tokenizers import Tokenizer as Inner
        from tokenizers import decoders, models, pre_tokenizers
    except ImportError:
        raise MissingExtra(
            "a tokenizer.json needs the package tokenizers: pip install 'shardwise[train]'"
        ) from None
    inner = Inner(models.BPE(vocab=BYTES_OF_LETTERS, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([BYTE_END])
    return str(inner.to_str())


def _bytes_of_letters() -> dict[str, int]:
    """The alphabet in which byte-level tokens are written: each byte is one printable letter."""
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)}
    table = {chr(byte): byte for byte in printable}
    others = sorted(set(range(256)) - printable)
    for place, byte in enumerate(others):
        table[chr(256 + place)] = byte
    return table


BYTES_OF_LETTERS = _bytes_of_letters()
