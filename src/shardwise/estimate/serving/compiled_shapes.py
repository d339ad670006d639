"""Shapes of compiled programs: an engine pads a pass to one of few, which are compiled ahead."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shardwise.arrays import Num

BATCH_STEP = 4  # ratio of two batch sizes that are compiled
CHUNK_STEP = 2  # ratio of two chunk lengths: chunks cost their padding, decode steps hardly
SHORTEST_CHUNK = 16  # tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledShapes:
    """The shapes (rows, new tokens of a row) for which an engine has programs.

    Args:
        max_sequences: the most rows of a batch.
        max_tokens: the most new tokens of a batch of chunks.
    """

    max_sequences: int
    max_tokens: int

    def batch_sizes(self) -> tuple[int, ...]:
        """The numbers of rows that are compiled."""
        return _steps(1, self.max_sequences, BATCH_STEP)

    def chunk_lengths(self) -> tuple[int, ...]:
        """The numbers of new tokens of a row that are compiled."""
        return 1, *_steps(min(SHORTEST_CHUNK, self.max_tokens), self.max_tokens, CHUNK_STEP)

    def is_compiled(self, n_rows: int, length: int) -> bool:
        """Whether there is a program of this shape."""
        return n_rows == 1 or length == 1 or n_rows * length <= self.max_tokens

    def all(self) -> Iterator[tuple[int, int]]:
        """All shapes."""
        for length in self.chunk_lengths():
            for n_rows in self.batch_sizes():
                if self.is_compiled(n_rows, length):
                    yield n_rows, length

    def n_rows(self, n: int) -> int:
        """The number of rows to which `n` rows are padded."""
        return next(size for size in self.batch_sizes() if size >= n)

    def length(self, n_new: int) -> int:
        """The number of new tokens to which a row is padded."""
        return next(length for length in self.chunk_lengths() if length >= n_new)

    def padded(self, tokens: Num) -> Num:
        """Tokens that the programs of one row compute for `tokens` new ones.

        >>> float(CompiledShapes(max_sequences=1, max_tokens=512).padded(700))
        768.0
        """
        import numpy as np

        whole = np.floor(tokens / self.max_tokens) * self.max_tokens
        lengths = np.array([0.0, *self.chunk_lengths()])
        return whole + lengths[np.searchsorted(lengths, tokens - whole)]

    def most_rows(self, length: int) -> int:
        """The most rows of one program whose rows have `length` new tokens."""
        return max(n for n in self.batch_sizes() if self.is_compiled(n, length))

    def programs(self, new_tokens: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Shapes of the programs that run rows of these numbers of new tokens, one after another.

        A row with more than `max_tokens` becomes several.

        >>> list(CompiledShapes(max_sequences=16, max_tokens=512).programs([1, 1, 90, 1, 1, 1]))
        [(16, 1), (1, 128)]
        """
        counts: dict[int, int] = {}
        for n_new in self._pieces(new_tokens):
            length = self.length(n_new)
            counts[length] = counts.get(length, 0) + 1
        for length, n in counts.items():
            most = self.most_rows(length)
            for start in range(0, n, most):
                yield self.n_rows(min(most, n - start)), length

    def _pieces(self, new_tokens: Sequence[int]) -> Iterator[int]:
        for n_new in new_tokens:
            whole, rest = divmod(n_new, self.max_tokens)
            yield from [self.max_tokens] * whole
            if rest:
                yield rest


@functools.cache
def _steps(first: int, last: int, ratio: int) -> tuple[int, ...]:
    """The numbers first, first * ratio, ... below last, and last."""
    sizes = []
    size = first
    while size < last:
        sizes.append(size)
        size *= ratio
    return (*sizes, last)
