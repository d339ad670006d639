"""Text <-> tokens: bytes, or any `tokenizer.json` of the `tokenizers` package."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from shardwise.errors import BadFile, BadInput, MissingExtra

FILE = "tokenizer.json"
BYTES = "bytes"

# Names that published tokenizers give the token between documents.
END_TOKENS = ("<|end_of_text|>", "<|endoftext|>", "</s>", "<eos>", "<|eos|>", "[SEP]")


class Tokenizer(Protocol):
    """What turns text into tokens."""

    @property
    def name(self) -> str:
        """`bytes`, or `tokenizer.json`."""
        ...

    @property
    def vocab(self) -> int:
        """One more than its highest token: rows of an embedding that it needs."""
        ...

    @property
    def end(self) -> int:
        """The token that stands between documents."""
        ...

    def encode(self, text: str) -> list[int]:
        """Tokens of a text, without the end."""
        ...

    def decode(self, tokens: list[int]) -> str:
        """The text of tokens."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Bytes:
    """Every byte of UTF-8 is a token; 256 ends a document.

    >>> Bytes().encode("né")
    [110, 195, 169]
    """

    name: str = BYTES
    vocab: int = 257
    end: int = 256

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: list[int]) -> str:
        return bytes(t for t in tokens if t < self.end).decode(errors="replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class FromFile:
    """A `tokenizer.json`.

    Args:
        inner: of the `tokenizers` package.
    """

    inner: Any
    end: int
    vocab: int
    name: str = FILE

    def encode(self, text: str) -> list[int]:
        return list(self.inner.encode(text, add_special_tokens=False).ids)

    def decode(self, tokens: list[int]) -> str:
        return str(self.inner.decode(tokens))


def read_tokenizer(path: Path, end: str = "") -> FromFile:
    """A tokenizer from its file.

    Args:
        end: the token between documents; empty takes the one of `END_TOKENS` that it has.

    Raises:
        BadFile: no such file, or none that the package reads.
        BadInput: no such end token.
        MissingExtra: the package is not installed.
    """
    try:
        from tokenizers import Tokenizer as Inner
    except ImportError:
        raise MissingExtra(
            f"{path} needs the package tokenizers: pip install 'shardwise[train]'"
        ) from None
    if not path.is_file():
        raise BadFile(f"no file {path}.")
    try:
        inner = Inner.from_file(str(path))
    except Exception as error:  # the package raises nothing narrower
        raise BadFile(f"{path} is no tokenizer.json: {error}.") from None
    inner.no_truncation()  # files of models that read short texts have both: text would be lost,
    inner.no_padding()  # and tokens that stand for nothing would be learned
    for name in (end,) if end else END_TOKENS:
        if (token := inner.token_to_id(name)) is not None:
            # Numbers may have gaps: the highest counts, not how many there are.
            highest = max(inner.get_vocab(with_added_tokens=True).values())
            return FromFile(inner=inner, end=int(token), vocab=highest + 1)
    if end:
        raise BadInput(f'{path} has no token "{end}".')
    raise BadInput(
        f"which token of {path} ends a document is not known: it has none of "
        f"{', '.join(END_TOKENS)}. Name it: --end TOKEN."
    )
