"""The device's side of an engine: weights, cache, and the programs that run on them.

Programs have few shapes, which are compiled ahead: a pass is padded to the next one. The last token
of each running sequence stays on the device, in its slot, so that a decode step can start before
the host has read the tokens of the step before.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from numpy.typing import NDArray

from shardwise.arrays import ceil_div
from shardwise.estimate.serving.compiled_shapes import CompiledShapes
from shardwise.runtime.kernels import cpu_rows
from shardwise.runtime.serving.forward import PagedForward
from shardwise.runtime.serving.sampling import Changes, Draw, Drawn, Verified, draw, verify
from shardwise.runtime.weights.descriptions import Tree
from shardwise.serve.host_cache import HostCache
from shardwise.serve.live import DRAW_DTYPES, Live, changes_of, draw_of
from shardwise.simulate.host_tier import Copies

Array = jax.Array
Ints = NDArray[np.int32]
Program = tuple[int, int, bool]  # rows, new tokens of a row, whether all logits are returned
Bools = NDArray[np.bool_]


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
class Programs:
    """Weights, cache and compiled programs of one engine.

    Args:
        forward: the forward pass.
        weights: weights, on the devices.
        max_sequences: the most rows of a batch.
        max_tokens: the most new tokens of a batch.
        max_context: the most tokens of a sequence.
        n_host_blocks: blocks of host memory that keep what the cache evicts.
        max_drafted: the most drafted tokens of a row; 0 for no drafts.
    """

    forward: PagedForward
    weights: Tree
    max_sequences: int
    max_tokens: int
    max_context: int
    n_host_blocks: int = 0
    max_drafted: int = 0
    _cache: list[Tree] = field(init=False)
    _last_token_S: Array = field(init=False)

    def __post_init__(self) -> None:
        shardings = None
        if not self.forward.by_layer:
            shardings = jax.tree.map(lambda x: x.sharding, self.forward.cache_shapes())
        self._cache = jax.jit(self.forward.init_cache, out_shardings=shardings)()
        self._replicated = NamedSharding(self.forward.engine.table.mesh.jax_mesh, PartitionSpec())
        # The slot after the last one belongs to padding.
        zeros = np.zeros(self.n_slots + 1, np.int32)
        self._last_token_S = jax.device_put(zeros, self._replicated)
        self._compiler_options: dict[str, Any] = {}
        if self.forward.by_layer:
            self._compiler_options = cpu_rows.compiler_options()
            self.weights = jax.jit(self.forward.weights_by_layer)(self.weights)
        self._run = jax.jit(
            functools.partial(_run, self.forward),
            static_argnames="all_logits",
            donate_argnums=(1,),
            compiler_options=self._compiler_options,
        )
        self._draw = jax.jit(_draw, static_argnames="n_top", donate_argnums=(1,))
        self._verify = jax.jit(verify, static_argnames="n_top")
        self._compiled: dict[Program, Callable[..., tuple[list[Tree], Array]]] = {}
        self._host_cache: HostCache | None = None
        if self.n_host_blocks:
            n_blocks = self.forward.n_blocks
            self._host_cache = HostCache(self._cache, n_blocks, self.n_host_blocks)

    @property
    def n_slots(self) -> int:
        """Number of slots; a sequence that has ended keeps its slot until the host knows it."""
        return 2 * self.max_sequences

    @property
    def shapes(self) -> CompiledShapes:
        """The shapes of the programs."""
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
                self._compiled[program] = executable
                progress(i + 1, len(programs))
        for n_rows in self.shapes.batch_sizes():
            logits_BV = self._forward([], n_rows, 1)
            slot_B = np.full(n_rows, self.n_slots, np.int32)
            columns: list[Any] = [np.zeros(n_rows, dtype) for dtype in DRAW_DTYPES]
            for how in (None, Draw(*columns)):  # greedy, and at a temperature; called as in `draw`
                self._last_token_S, _ = self._draw(
                    logits_BV, self._last_token_S, slot_B, how, None, n_top=None
                )
        for n_rows, length in verified:
            logits_BTV = self._forward([], n_rows, length, all_logits=True)
            drafted_BK = np.zeros((n_rows, self.max_drafted), np.int32)
            self._verify(logits_BTV, drafted_BK, np.zeros(n_rows, np.int32))
        jax.block_until_ready(self._cache)

    def _compile(self, program: Program) -> Callable[..., tuple[list[Tree], Array]]:
        n_rows, length, all_logits = program
        batch = self._arrays([], n_rows, length)
        arguments = (self.weights, self._cache, self._last_token_S)
        return self._run.lower(*arguments, *batch, all_logits=all_logits).compile()

    def copy_blocks(self, copies: Copies) -> None:
        """Run the copies between the cache and host memory that precede a pass."""
        if self._host_cache is not None:
            self._cache = self._host_cache.copy(self._cache, copies)

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
            by_length.setdefault(self.shapes.length(row.n_new), []).append(row)
        for length, same in by_length.items():
            most = self.shapes.most_rows(length)
            for start in range(0, len(same), most):
                yield same[start : start + most]

    def logits(self, batch: Sequence[Row]) -> Array:
        """Run a forward pass over a batch of `batches`; return logits_BV of their last tokens.

        B may be larger than the batch: the rest is padding.
        """
        return self._forward(
            batch, self.shapes.n_rows(len(batch)), self.shapes.length(batch[0].n_new)
        )

    def _forward(
        self, rows: Sequence[Row], n_rows: int, length: int, *, all_logits: bool = False
    ) -> Array:
        """Run the program of a shape; return logits_BV, or logits_BTV for `all_logits`."""
        arguments = (self.weights, self._cache, self._last_token_S)
        batch = self._arrays(rows, n_rows, length)
        run = self._compiled.get((n_rows, length, all_logits))
        if run is None:
            run = functools.partial(self._run, all_logits=all_logits)
        self._cache, logits_BV = run(*arguments, *batch)
        return logits_BV

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

    def draw(self, logits_BV: Array, batch: Sequence[Row]) -> Drawn:
        """Draw the next tokens of a batch, and keep them as the last tokens of their slots.

        Args:
            logits_BV: from `logits`, of the same batch.
        """
        n_rows, vocab = logits_BV.shape
        slot_B = np.full(n_rows, self.n_slots, np.int32)
        for i, row in enumerate(batch):
            if row.draws:
                slot_B[i] = row.slot
        requests = [row.live for row in batch]
        self._last_token_S, drawn = self._draw(
            logits_BV,
            self._last_token_S,
            slot_B,
            draw_of(requests, [row.length for row in batch], n_rows),
            changes_of(requests, n_rows, vocab),
            n_top=_n_top(requests),
        )
        return drawn

    def verify(self, rows: Sequence[Row]) -> Verified:
        """Run a forward pass over rows of a token and its drafts, and draw the tokens after each.

        At most `max_sequences` rows; their slots are not used.
        """
        n_rows = self.shapes.n_rows(len(rows))
        logits_BTV = self._forward(rows, n_rows, 1 + self.max_drafted, all_logits=True)
        drafted_BK = np.zeros((n_rows, self.max_drafted), np.int32)
        n_drafted_B = np.zeros(n_rows, np.int32)
        for i, row in enumerate(rows):
            drafted = row.tokens[1:]
            drafted_BK[i, : len(drafted)] = drafted
            n_drafted_B[i] = len(drafted)
        requests = [row.live for row in rows]
        verified: Verified = self._verify(
            logits_BTV,
            drafted_BK,
            n_drafted_B,
            draw_of(requests, [row.past + 1 for row in rows], n_rows),
            changes_of(requests, n_rows, logits_BTV.shape[-1]),
            n_top=_n_top(requests),
        )
        return verified


def _run(
    forward: PagedForward,
    weights: Tree,
    cache: list[Tree],
    last_token_S: Array,
    tokens_BT: Array,
    slot_B: Array,
    is_from_slot_B: Array,
    past_B: Array,
    new_B: Array,
    tables_BM: Array,
    all_logits: bool = False,
) -> tuple[list[Tree], Array]:
    """A forward pass whose rows of one token may take it from their slots."""
    first_B = jnp.where(is_from_slot_B, last_token_S[slot_B], tokens_BT[:, 0])
    tokens_BT = tokens_BT.at[:, 0].set(first_B)
    run = forward.function(all_logits=all_logits)
    return run(weights, cache, tokens_BT, past_B, new_B, tables_BM)


def _draw(
    logits_BV: Array,
    last_token_S: Array,
    slot_B: Array,
    how: Draw | None = None,
    changes: Changes | None = None,
    n_top: int | None = None,
) -> tuple[Array, Drawn]:
    """Draw tokens; return (last tokens of all slots, the drawn tokens)."""
    drawn = draw(logits_BV, how, changes, n_top)
    return last_token_S.at[slot_B].set(drawn.token_B), drawn


def _n_top(requests: Sequence[Live]) -> int | None:
    """Number of most probable tokens to report for a batch; None for no log-probabilities."""
    asked = [live.generation.sampling.logprobs for live in requests]
    return max((n for n in asked if n is not None), default=None)
