"""The programs of an engine for batches of requests.

Programs have few shapes, which are compiled ahead: a pass is padded to the next one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import jax
import numpy as np

from shardwise.arrays import ceil_div
from shardwise.runtime.serving.sampling import (
    Drawn,
    LogProbabilities,
    Verified,
)
from shardwise.runtime.weights.descriptions import Tree
from shardwise.serve.device_programs import Bools, DevicePrograms, Ints, Program
from shardwise.serve.live import Live, changes_of, draw_of
from shardwise.simulate.host_tier import Copies

Array = jax.Array

SHAPE_STEP = 4  # ratio of two batch sizes, and of two chunk lengths, that are compiled
SHORTEST_CHUNK = 16  # tokens
MOST_SCORED = 64  # tokens of a prompt whose logits are in memory at the same time


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One sequence of a batch.

    Args:
        live: the request.
        slot: slot of its last token.
        tokens: its new tokens; empty if that is the one in the slot.
        past: number of its tokens in the cache.
        table: ids of its blocks.
        draws: whether its next token is drawn; False if its prompt has further chunks.
    """

    live: Live
    slot: int
    tokens: Sequence[int] = ()
    past: int
    table: Sequence[int]
    draws: bool = True

    @property
    def n_new(self) -> int:
        """Number of new tokens."""
        return max(1, len(self.tokens))

    @property
    def length(self) -> int:
        """Number of tokens after the pass, which is the position of the next one."""
        return self.past + self.n_new


@dataclass(kw_only=True)
class Programs(DevicePrograms):
    """The programs of one engine, for batches of its requests.

    Args:
        max_tokens: the most new tokens of a batch.
        max_context: the most tokens of a sequence.
        max_drafted: the most drafted tokens of a row; 0 for no drafts.
    """

    max_tokens: int
    max_context: int
    max_drafted: int = 0

    @property
    def table_width(self) -> int:
        """Number of blocks of the longest sequence."""
        return int(ceil_div(self.max_context, self.forward.block_tokens))

    def batch_sizes(self) -> list[int]:
        """The numbers of rows that are compiled."""
        return _steps(1, self.max_sequences)

    def chunk_lengths(self) -> list[int]:
        """The numbers of new tokens of a row that are compiled."""
        return [1, *_steps(min(SHORTEST_CHUNK, self.max_tokens), self.max_tokens)]

    def shapes(self) -> Iterator[tuple[int, int]]:
        """The shapes (rows, new tokens of a row) of all programs."""
        for length in self.chunk_lengths():
            for n_rows in self.batch_sizes():
                if self._is_compiled(n_rows, length):
                    yield n_rows, length

    def compile(self, progress: Callable[[int, int], None] = lambda done, of: None) -> None:
        """Compile all programs, several at a time.

        Args:
            progress: called with the number of compiled programs and of all.
        """
        shapes = list(self.shapes())
        verified = [(n_rows, 1 + self.max_drafted) for n_rows in self.batch_sizes()]
        if not self.max_drafted:
            verified = []
        programs = [(*shape, False) for shape in shapes] + [(*shape, True) for shape in verified]
        progress(0, len(programs))
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            compiled = pool.map(self._compile, programs)
            for i, (program, executable) in enumerate(zip(programs, compiled, strict=True)):
                self._compiled[program] = executable
                progress(i + 1, len(programs))
        for n_rows in self.batch_sizes():
            self._forward([], n_rows, 1)
            self.perform("draw", None, np.full(n_rows, self.n_slots, np.int32), None, None)
        for n_rows, length in verified:
            self._forward([], n_rows, length, all_logits=True)
            drafted_BK = np.zeros((n_rows, self.max_drafted), np.int32)
            self.perform("verify", None, drafted_BK, np.zeros(n_rows, np.int32), None, None)
        jax.block_until_ready(self._cache)

    def _compile(self, program: Program) -> Callable[..., tuple[list[Tree], Array]]:
        n_rows, length, all_logits = program
        batch = self._arrays([], n_rows, length)
        arguments = (self.weights, self._cache, self._last_token_S)
        return self._run.lower(*arguments, *batch, all_logits=all_logits).compile()

    def copy_blocks(self, copies: Copies) -> None:
        """Run the copies between the cache and host memory that precede a pass."""
        if self._host_cache is not None and any(copies):
            self.perform("copy", *copies)

    def batches(self, rows: Sequence[Row]) -> Iterator[list[Row]]:
        """Split rows into batches for `logits`, each of rows that are padded to one length.

        A row with more than `max_tokens` new tokens becomes several batches, one after the other.
        """
        by_length: dict[int, list[Row]] = {}
        for row in rows:
            while row.n_new > self.max_tokens:
                yield [replace(row, tokens=row.tokens[: self.max_tokens], draws=False)]
                rest = row.tokens[self.max_tokens :]
                row = replace(row, tokens=rest, past=row.past + self.max_tokens)
            by_length.setdefault(self._length(row), []).append(row)
        for length, same in by_length.items():
            sizes = [n for n in self.batch_sizes() if n == 1 or self._is_compiled(n, length)]
            for start in range(0, len(same), sizes[-1]):
                yield same[start : start + sizes[-1]]

    def logits(self, batch: Sequence[Row]) -> Array:
        """Run a forward pass over a batch of `batches`; return logits_BV of their last tokens.

        B may be larger than the batch: the rest is padding. `draw` has them until the next pass.
        """
        return self._forward(batch, self._n_rows(batch), self._length(batch[0]))

    def _n_rows(self, batch: Sequence[Row]) -> int:
        """The number of rows to which a batch is padded."""
        return next(n for n in self.batch_sizes() if n >= len(batch))

    def _length(self, row: Row) -> int:
        """The number of new tokens to which a row is padded."""
        return next(n for n in self.chunk_lengths() if n >= row.n_new)

    def _is_compiled(self, n_rows: int, length: int) -> bool:
        """Whether there is a program of this shape."""
        return n_rows == 1 or length == 1 or n_rows * length <= self.max_tokens

    def _forward(
        self, rows: Sequence[Row], n_rows: int, length: int, *, all_logits: bool = False
    ) -> Array:
        """Run the program of a shape; return logits_BV, or logits_BTV for `all_logits`."""
        logits: Array = self.perform("forward", all_logits, *self._arrays(rows, n_rows, length))
        return logits

    def _arrays(self, rows: Sequence[Row], n_rows: int, length: int) -> tuple[Ints | Bools, ...]:
        """(tokens_BT, slot_B, is_from_slot_B, past_B, new_B, tables_BM) of `_run`."""
        tokens_BT = np.zeros((n_rows, length), np.int32)
        slot_B = np.full(n_rows, self.n_slots, np.int32)
        is_from_slot_B = np.zeros(n_rows, bool)
        past_B = np.zeros(n_rows, np.int32)
        new_B = np.zeros(n_rows, np.int32)
        tables_BM = np.zeros((n_rows, self.table_width), np.int32)
        for i, row in enumerate(rows):
            tokens_BT[i, : len(row.tokens)] = row.tokens
            slot_B[i] = row.slot
            is_from_slot_B[i] = not row.tokens
            past_B[i] = row.past
            new_B[i] = row.n_new
            table = row.table[: self.table_width]
            tables_BM[i, : len(table)] = table
        return tokens_BT, slot_B, is_from_slot_B, past_B, new_B, tables_BM

    def draw(self, batch: Sequence[Row]) -> Drawn:
        """Draw the next tokens of the batch of the last `logits`.

        They are kept as the last tokens of their slots.
        """
        n_rows = self._n_rows(batch)
        slot_B = np.full(n_rows, self.n_slots, np.int32)
        for i, row in enumerate(batch):
            if row.draws:
                slot_B[i] = row.slot
        requests = [row.live for row in batch]
        drawn: Drawn = self.perform(
            "draw",
            _n_top(requests),
            slot_B,
            draw_of(requests, [row.length for row in batch], n_rows),
            changes_of(requests, n_rows, self._logits.shape[-1]),
        )
        return drawn

    def score(self, row: Row) -> LogProbabilities:
        """Run a forward pass over a row of `scored_rows`, and score what follows its tokens.

        `draw` has the logits of its last token. The first call compiles a program.
        """
        length = self._scored_length
        self._forward([row], 1, length, all_logits=True)
        next_BT = np.zeros((1, length), np.int32)
        following = row.live.tokens[row.past + 1 : row.length + 1]
        next_BT[0, : len(following)] = following
        n_top = row.live.generation.sampling.logprobs or 0
        last_B = np.array([row.n_new - 1], np.int32)
        scores: LogProbabilities = self.perform("score", n_top, next_BT, last_B)
        return scores

    @property
    def _scored_length(self) -> int:
        """Number of tokens of a row that is scored: all their logits need memory."""
        return next(n for n in self.chunk_lengths() if n >= min(MOST_SCORED, self.max_tokens))

    def scored_rows(self, row: Row) -> Iterator[Row]:
        """Split a chunk of a prompt into rows for `score`."""
        step = self._scored_length
        for start in range(0, row.n_new, step):
            tokens = row.tokens[start : start + step]
            is_last = start + step >= row.n_new
            past = row.past + start
            yield replace(row, tokens=tokens, past=past, draws=row.draws and is_last)

    def verify(self, rows: Sequence[Row]) -> Verified:
        """Run a forward pass over rows of a token and its drafts, and draw the tokens after each.

        At most `max_sequences` rows; their slots are not used.
        """
        n_rows = self._n_rows(rows)
        self._forward(rows, n_rows, 1 + self.max_drafted, all_logits=True)
        drafted_BK = np.zeros((n_rows, self.max_drafted), np.int32)
        n_drafted_B = np.zeros(n_rows, np.int32)
        for i, row in enumerate(rows):
            drafted = row.tokens[1:]
            drafted_BK[i, : len(drafted)] = drafted
            n_drafted_B[i] = len(drafted)
        requests = [row.live for row in rows]
        verified: Verified = self.perform(
            "verify",
            _n_top(requests),
            drafted_BK,
            n_drafted_B,
            draw_of(requests, [row.past + 1 for row in rows], n_rows),
            changes_of(requests, n_rows, self._logits.shape[-1]),
        )
        return verified


def _n_top(requests: Sequence[Live]) -> int | None:
    """Number of most probable tokens to report for a batch; None for no log-probabilities."""
    asked = [live.generation.sampling.logprobs for live in requests]
    return max((n for n in asked if n is not None), default=None)


def _steps(first: int, last: int) -> list[int]:
    """The numbers first, first * SHAPE_STEP, ... below last, and last."""
    sizes = []
    size = first
    while size < last:
        sizes.append(size)
        size *= SHAPE_STEP
    return [*sizes, last]
