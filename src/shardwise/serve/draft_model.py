"""A small model that drafts tokens for a large one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import jax
import numpy as np

from shardwise.runtime.serving.forward import PagedForward
from shardwise.runtime.serving.sampling import Draw, draw
from shardwise.runtime.weights.descriptions import Tree
from shardwise.serve.device_programs import Ints
from shardwise.serve.live import Live, draw_of
from shardwise.serve.programs import Programs, Row

Array = jax.Array

MOST_NEW = 2  # tokens of a sequence that its cache can lack: one that was drafted, and the last one


@dataclass(kw_only=True)
class DraftModel(Programs):
    """A small model with its own cache, in the blocks of the large model's.

    It draws its tokens as the large model does, with the same noise, so that they agree as often as
    the two models' probabilities do. Its cache may lack the last drafted token of a text that is
    read from the prefix cache, by a preempted or another request, and generated tokens that were
    not drafted; this costs accepted drafts and changes no output.

    Args:
        n_drafted: tokens drafted for each sequence in a pass.
    """

    n_drafted: int

    def __post_init__(self) -> None:
        super().__post_init__()
        self._n_cached: WeakKeyDictionary[Live, int] = WeakKeyDictionary()
        self._draft = jax.jit(
            functools.partial(_draft, self.forward),
            donate_argnums=(1,),
            out_shardings=(self._cache_formats, self._replicated),
            compiler_options=self._compiler_options,
        )

    def compile(self, progress: Callable[[int, int], None] = lambda done, of: None) -> None:
        """See `Drafter`."""
        super().compile(progress)
        for n_rows in self.shapes.batch_sizes():
            self._drafts([], np.zeros(n_rows * self.n_pools, np.int32))
        jax.block_until_ready(self._cache)

    def read_prompts(self, rows: Sequence[Row]) -> None:
        """See `Drafter`."""
        for row in rows:
            self._n_cached.pop(row.live, None)
        for batch in self.batches(rows):
            self.logits(batch)

    def propose(self, rows: Sequence[Row], wanted: Sequence[int]) -> list[list[int]]:
        """See `Drafter`."""
        if not any(wanted):
            return [[] for _ in rows]
        wanted_B = np.zeros(self._n_rows(rows) * self.n_pools, np.int32)
        wanted_B[[row.place for row in rows]] = wanted
        drafts = self._drafts([self._caught_up(row) for row in rows], wanted_B)
        drafted_BK = np.concatenate(jax.device_get(drafts), axis=1)
        for row, n in zip(rows, wanted, strict=True):
            self._n_cached[row.live] = row.past + n
        return [drafted_BK[row.place, :n].tolist() for row, n in zip(rows, wanted, strict=True)]

    def _caught_up(self, row: Row) -> Row:
        """A row with the token that its last drafts ended with, if that was accepted.

        Keys and values of a drafted token are written when the next one is drafted.
        """
        if self._n_cached.get(row.live, row.past) != row.past - 1:
            return row
        return replace(row, tokens=row.live.tokens[row.past - 1 :], past=row.past - 1)

    def _drafts(self, rows: Sequence[Row], wanted_B: Ints) -> list[Array]:
        """Drafted tokens [B,1] of each step; the device computes them one after another."""
        n_rows = len(wanted_B)
        batch = self._arrays(rows, n_rows // self.n_pools, MOST_NEW)
        tokens_BT, _, _, past_B, new_B, tables_BM = batch
        places = [row.place for row in rows]
        how = draw_of([row.live for row in rows], [row.length for row in rows], places, n_rows)
        drafts: list[Array] = self.perform(
            "drafts", wanted_B, tokens_BT, past_B, new_B, tables_BM, how
        )
        return drafts

    def _perform_drafts(
        self, wanted_B: Ints, tokens_BT: Ints, past_B: Ints, new_B: Ints, tables_BM: Ints, how: Any
    ) -> list[Array]:
        how = how and Draw(*how)
        drafted: list[Array] = []
        for i in range(self.n_drafted):
            is_wanted_B = (wanted_B > i).astype(np.int32)
            self._cache, tokens_B1 = self._draft(
                self.weights,
                self._cache,
                drafted[-1] if drafted else tokens_BT,
                past_B,
                new_B * is_wanted_B,
                tables_BM,
                how,
            )
            drafted.append(tokens_B1)
            past_B, new_B = past_B + new_B, np.ones_like(new_B)
            if how is not None:
                how = how._replace(position_B=how.position_B + 1)
        return drafted


def _draft(
    forward: PagedForward,
    weights: Tree,
    cache: list[Tree],
    tokens_BT: Array,
    past_B: Array,
    new_B: Array,
    tables_BM: Array,
    how: Draw | None,
) -> tuple[list[Tree], Array]:
    """Draft one token of each sequence; return (cache, drafted tokens [B,1])."""
    cache, logits_BV = forward.function()(weights, cache, tokens_BT, past_B, new_B, tables_BM)
    return cache, draw(logits_BV, how).token_B[:, None]
