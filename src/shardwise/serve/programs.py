"""The programs of an engine for batches of requests.

Programs have few shapes, which are compiled ahead: a pass is padded to the next one.
"""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import jax
import numpy as np

from shardwise.arrays import ceil_div
from shardwise.estimate.serving.compiled_shapes import CompiledShapes
from shardwise.runtime.serving.sampling import Drawn, LogProbabilities, Verified
from shardwise.runtime.weights.descriptions import Tree
from shardwise.serve.device_programs import Bools, DevicePrograms, Ints, Program
from shardwise.serve.live import DRAW_DTYPES, Live, changes_of, draw_of
from shardwise.simulate.host_tier import Copies

Array = jax.Array

MOST_SCORED = 64  # tokens of a prompt whose logits are in memory at the same time
USUAL_TOP = 20  # most probable tokens that a batch reports if it reports any: the API's most


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One sequence of a batch.

    Args:
        live: the request.
        slot: slot of its last token.
        pool: the pool that has its blocks.
        tokens: its new tokens; empty if that is the one in the slot.
        past: number of its tokens in the cache.
        table: ids of its blocks in the pool.
        draws: whether its next token is drawn; False if its prompt has further chunks.
        place: its row in the arrays of a batch, see `Programs.placed`.
    """

    live: Live
    slot: int
    pool: int = 0
    tokens: Sequence[int] = ()
    past: int
    table: Sequence[int]
    draws: bool = True
    place: int = 0

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

    A batch has equally many rows of each pool of the engine, those of the first pool first.

    Args:
        max_tokens: the most new tokens of a pool in a batch.
        max_context: the most tokens of a sequence.
        max_drafted: the most drafted tokens of a row; 0 for no drafts.
    """

    max_tokens: int
    max_context: int
    max_drafted: int = 0

    @property
    def shapes(self) -> CompiledShapes:
        """The shapes of the programs, for each pool."""
        return CompiledShapes(max_sequences=self.max_sequences, max_tokens=self.max_tokens)

    @property
    def table_width(self) -> int:
        """Number of blocks of the longest sequence."""
        return int(ceil_div(self.max_context, self.forward.block_tokens))

    def compile(self, progress: Callable[[int, int], None] = lambda done, of: None) -> None:
        """Compile all programs, several at a time.

        Args:
            progress: called with the number of compiled programs and of all.
        """
        shapes = list(self.shapes.all())
        verified = [(n_rows, 1 + self.max_drafted) for n_rows in self.shapes.batch_sizes()]
        if not self.max_drafted:
            verified = []
        programs = [(*shape, False) for shape in shapes] + [(*shape, True) for shape in verified]
        progress(0, len(programs))
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            compiled = pool.map(self._compile, programs)
            for i, (program, executable) in enumerate(zip(programs, compiled, strict=True)):
                n_rows, length, all_logits = program
                self._compiled[n_rows * self.n_pools, length, all_logits] = executable
                progress(i + 1, len(programs))
        for n_rows in self.shapes.batch_sizes():
            self._forward([], n_rows, 1)
            n = n_rows * self.n_pools
            columns = [np.zeros(n, dtype) for dtype in DRAW_DTYPES]
            for how in (None, columns):  # greedy, and at a temperature
                self.perform("draw", None, np.full(n, self.n_slots, np.int32), how, None)
        for n_rows, length in verified:
            self._forward([], n_rows, length, all_logits=True)
            n = n_rows * self.n_pools
            drafted_BK = np.zeros((n, self.max_drafted), np.int32)
            self.perform("verify", None, drafted_BK, np.zeros(n, np.int32), None, None)
        jax.block_until_ready(self._cache)

    def _compile(self, program: Program) -> Callable[..., tuple[list[Tree], Array]]:
        n_rows, length, all_logits = program
        batch = self._arrays([], n_rows, length)
        arguments = (self.weights, self._cache, self._last_token_S)
        run = self.run_of(length)
        compiled = run.lower(*arguments, *batch, all_logits=all_logits).compile()
        # On CPUs JAX 0.10 refuses arrays of 4 bits as arguments of what it has compiled ahead; the
        # call of a jitted function takes them, and does not compile again.
        state = self.forward.engine
        has_nibbles = state.job.weights == "int4" and state.table.mesh.platform == "cpu"
        return functools.partial(run, all_logits=all_logits) if has_nibbles else compiled

    def copy_blocks(self, copies: Copies) -> None:
        """Run the copies between the cache and host memory that precede a pass."""
        if self._host_cache is not None and any(copies):
            self.perform("copy", *copies)

    def compile_transfer(self) -> None:
        """Compile the programs of `read_blocks` and `write_blocks`."""
        self._cache = self.transfer.compile(self._cache, self.table_width)

    def read_blocks(self, row: Row) -> list[Tree]:
        """The blocks of a row, as they are after the passes that were started; for `transfer`."""
        return self.transfer.read(self._cache, row.pool, row.table)

    def write_blocks(self, row: Row, blocks: list[Tree]) -> None:
        """Write the new tokens of a row, whose first it is, from blocks of `transfer.place`."""
        written = self.transfer.write(self._cache, row.pool, row.table, row.n_new, blocks)
        self._cache = written

    def batches(self, rows: Sequence[Row]) -> Iterator[list[Row]]:
        """Split rows into batches for `logits`, the longest rows first.

        All pools run every batch, so that shorter rows fill what would be padding. A row with more
        than `max_tokens` new tokens becomes several batches, one after the other.
        """
        queues: list[list[Row]] = [[] for _ in range(self.n_pools)]
        for row in rows:
            while row.n_new > self.max_tokens:
                first = replace(row, tokens=row.tokens[: self.max_tokens], draws=False)
                yield self.placed([first])
                rest = row.tokens[self.max_tokens :]
                row = replace(row, tokens=rest, past=row.past + self.max_tokens)
            queues[row.pool].append(row)
        for queue in queues:
            queue.sort(key=self._length, reverse=True)
        while any(queues):
            length = max(self._length(row) for queue in queues for row in queue)
            n_longest = max([self._length(row) for row in queue].count(length) for queue in queues)
            n_rows = self.shapes.n_rows(min(n_longest, self.shapes.most_rows(length)))
            yield self.placed([row for queue in queues for row in queue[:n_rows]])
            queues = [queue[n_rows:] for queue in queues]

    def placed(self, rows: Sequence[Row]) -> list[Row]:
        """The rows of a batch at their places in its arrays, which have equal parts for pools."""
        n_rows = self._n_rows(rows)
        n_taken = [0] * self.n_pools
        placed = []
        for row in rows:
            placed.append(replace(row, place=row.pool * n_rows + n_taken[row.pool]))
            n_taken[row.pool] += 1
        return placed

    def logits(self, batch: Sequence[Row]) -> Array:
        """Run a forward pass over a batch of `batches`; return logits_BV of their last tokens.

        Logits of a row are at its `place`; the rest of B is padding. `draw` has them until the
        next pass.
        """
        return self._forward(batch, self._n_rows(batch), max(map(self._length, batch)))

    def _n_rows(self, batch: Sequence[Row]) -> int:
        """The number of rows to which each pool's part of a batch is padded."""
        return self.shapes.n_rows(max(Counter(row.pool for row in batch).values()))

    def _length(self, row: Row) -> int:
        """The number of new tokens to which a row is padded."""
        return self.shapes.length(row.n_new)

    def _forward(
        self, rows: Sequence[Row], n_rows: int, length: int, *, all_logits: bool = False
    ) -> Array:
        """Run the program of a shape; return logits_BV, or logits_BTV for `all_logits`."""
        logits: Array = self.perform("forward", all_logits, *self._arrays(rows, n_rows, length))
        return logits

    def _arrays(self, rows: Sequence[Row], n_rows: int, length: int) -> tuple[Ints | Bools, ...]:
        """(tokens_BT, slot_B, is_from_slot_B, past_B, new_B, tables_BM) of `run_of`."""
        n_rows *= self.n_pools
        tokens_BT = np.zeros((n_rows, length), np.int32)
        slot_B = np.full(n_rows, self.n_slots, np.int32)
        is_from_slot_B = np.zeros(n_rows, bool)
        past_B = np.zeros(n_rows, np.int32)
        new_B = np.zeros(n_rows, np.int32)
        tables_BM = np.zeros((n_rows, self.table_width), np.int32)
        for row in rows:
            i = row.place
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
        n_rows = len(self._logits)
        slot_B = np.full(n_rows, self.n_slots, np.int32)
        for row in batch:
            if row.draws:
                slot_B[row.place] = row.slot
        requests = [row.live for row in batch]
        places = [row.place for row in batch]
        drawn: Drawn = self.perform(
            "draw",
            _n_top(requests),
            slot_B,
            draw_of(requests, [row.length for row in batch], places, n_rows),
            changes_of(requests, places, n_rows, self._logits.shape[-1]),
        )
        return drawn

    def score(self, row: Row) -> LogProbabilities:
        """Run a forward pass over a row of `scored_rows`, and score what follows its tokens.

        `draw` has the logits of its last token. The first call compiles a program.
        """
        length = self._scored_length
        self._forward([row], 1, length, all_logits=True)
        next_BT = np.zeros((self.n_pools, length), np.int32)
        following = row.live.tokens[row.past + 1 : row.length + 1]
        next_BT[row.place, : len(following)] = following
        n_top = row.live.generation.sampling.logprobs or 0
        last_B = np.zeros(self.n_pools, np.int32)
        last_B[row.place] = row.n_new - 1
        scores: LogProbabilities = self.perform("score", n_top, next_BT, last_B)
        return scores

    @property
    def _scored_length(self) -> int:
        """Number of tokens of a row that is scored: all their logits need memory."""
        return next(
            n for n in self.shapes.chunk_lengths() if n >= min(MOST_SCORED, self.max_tokens)
        )

    def scored_rows(self, row: Row) -> Iterator[Row]:
        """Split a chunk of a prompt into rows for `score`."""
        step = self._scored_length
        for start in range(0, row.n_new, step):
            tokens = row.tokens[start : start + step]
            is_last = start + step >= row.n_new
            past = row.past + start
            part = replace(row, tokens=tokens, past=past, draws=row.draws and is_last)
            yield from self.placed([part])

    def verify(self, rows: Sequence[Row]) -> Verified:
        """Run a forward pass over rows of a token and its drafts, and draw the tokens after each.

        At most `max_sequences` rows of a pool, which are `placed`; their slots are not used.
        """
        self._forward(rows, self._n_rows(rows), 1 + self.max_drafted, all_logits=True)
        n_rows = len(self._logits)
        drafted_BK = np.zeros((n_rows, self.max_drafted), np.int32)
        n_drafted_B = np.zeros(n_rows, np.int32)
        for row in rows:
            drafted = row.tokens[1:]
            drafted_BK[row.place, : len(drafted)] = drafted
            n_drafted_B[row.place] = len(drafted)
        requests = [row.live for row in rows]
        places = [row.place for row in rows]
        verified: Verified = self.perform(
            "verify",
            _n_top(requests),
            drafted_BK,
            n_drafted_B,
            draw_of(requests, [row.past + 1 for row in rows], places, n_rows),
            changes_of(requests, places, n_rows, self._logits.shape[-1]),
        )
        return verified


def _n_top(requests: Sequence[Live]) -> int | None:
    """Number of most probable tokens to report for a batch; None for no log-probabilities.

    It is part of a program's shape, and a new one would be compiled while requests wait.
    """
    asked = [live.generation.sampling.logprobs for live in requests]
    return max((max(USUAL_TOP, n) for n in asked if n is not None), default=None)
