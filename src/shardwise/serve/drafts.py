"""Drafts of the next tokens of sequences, from their own text.

A drafter guesses several tokens for each sequence, and one pass of the model verifies them: see
`runtime.serving.sampling.verify`. A wrong guess costs time and changes no output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol
from weakref import WeakKeyDictionary

from shardwise.serve.live import Live
from shardwise.serve.programs import Row
from shardwise.simulate.host_tier import Copies

LONGEST_MATCH = 16  # tokens that are compared
MOST_MATCHES = 16  # places that are compared, the latest ones


class Drafter(Protocol):
    """Guesses the next tokens of sequences."""

    def compile(self, progress: Callable[[int, int], None]) -> None:
        """Compile all programs; see `Programs.compile`."""
        ...

    def read_prompts(self, rows: Sequence[Row]) -> None:
        """Take the chunks of prompts that the model computes in a pass."""
        ...

    def copy_blocks(self, copies: Copies) -> None:
        """Run the copies between the model's cache and host memory on its own cache, too."""
        ...

    def propose(self, rows: Sequence[Row], wanted: Sequence[int]) -> list[list[int]]:
        """Draft tokens that follow the new token of each row.

        Args:
            rows: sequences that decode, each with its last token, `placed`.
            wanted: the most tokens for each row.
        """
        ...


def with_drafts(rows: Sequence[Row], drafter: Drafter, most: int) -> list[Row]:
    """Rows of sequences that decode, each with its last token and up to `most` drafted ones."""
    rows = [replace(row, tokens=row.live.tokens[row.past :]) for row in rows]
    wanted = [min(most, row.live.n_draftable) for row in rows]
    drafts = drafter.propose(rows, wanted)
    return [
        replace(row, tokens=[*row.tokens, *drafted])
        for row, drafted in zip(rows, drafts, strict=True)
    ]


class NgramDrafter:
    """Drafts what followed the latest tokens of a sequence where they occurred before in it."""

    def __init__(self) -> None:
        self._indexes: WeakKeyDictionary[Live, NgramIndex] = WeakKeyDictionary()

    def compile(self, progress: Callable[[int, int], None]) -> None:
        """See `Drafter`; there are no programs."""

    def read_prompts(self, rows: Sequence[Row]) -> None:
        """See `Drafter`; prompts are read when they are complete."""

    def copy_blocks(self, copies: Copies) -> None:
        """See `Drafter`; there is no cache."""

    def propose(self, rows: Sequence[Row], wanted: Sequence[int]) -> list[list[int]]:
        """See `Drafter`."""
        drafts = []
        for row, n in zip(rows, wanted, strict=True):
            index = self._indexes.setdefault(row.live, NgramIndex())
            drafts.append(index.propose(row.live.tokens, n))
        return drafts


class NgramIndex:
    """Places of each pair of tokens in a sequence that grows.

    >>> NgramIndex().propose([1, 2, 3, 4, 9, 2, 3], 2)
    [4, 9]
    """

    def __init__(self) -> None:
        self._next_of_pair: dict[tuple[int, int], list[int]] = {}  # positions of the token after it
        self._n_read = 2  # tokens

    def propose(self, tokens: Sequence[int], n: int) -> list[int]:
        """Draft up to `n` tokens that follow `tokens`, which continue those of the last call.

        They are those after the longest of the latest matches of the last tokens. A match that is
        closer than `n` tokens to the end repeats itself.
        """
        for position in range(self._n_read, len(tokens)):
            pair = (tokens[position - 2], tokens[position - 1])
            self._next_of_pair.setdefault(pair, []).append(position)
        self._n_read = max(self._n_read, len(tokens))
        if n < 1 or len(tokens) < 2:
            return []
        matches = self._next_of_pair.get((tokens[-2], tokens[-1]), [])[-MOST_MATCHES:]
        if not matches:
            return []
        start = max(reversed(matches), key=lambda position: _match_length(tokens, position))
        return [tokens[start + i % (len(tokens) - start)] for i in range(n)]


def _match_length(tokens: Sequence[int], position: int) -> int:
    """Number of tokens before `position` that equal the last tokens."""
    length = 0
    most = min(LONGEST_MATCH, position)
    while length < most and tokens[position - 1 - length] == tokens[-1 - length]:
        length += 1
    return length
