"""A small model that drafts tokens for a large one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shardwise.runtime.serving.forward import PagedForward
from shardwise.runtime.serving.sampling import Draw, draw
from shardwise.runtime.weights.descriptions import Tree
from shardwise.serve.live import Live, draw_of
from shardwise.serve.programs import Programs, Row

Array = jax.Array

MOST_NEW = 2  # tokens of a sequence that its cache can lack: one that was drafted, and the last one


@dataclass(kw_only=True)
class DraftModel(Programs):
    """A small model with its own cache, in the blocks of the large model's.

    It draws its tokens as the large model does, with the same noise, so that they agree as often as
    the two models' probabilities do.

    Args:
        n_drafted: tokens drafted for each sequence in a pass.
    """

    n_drafted: int

    def __post_init__(self) -> None:
        super().__post_init__()
        self._n_cached: WeakKeyDictionary[Live, int] = WeakKeyDictionary()
        drafts = functools.partial(_draft, self.forward, self.n_drafted)
        self._draft = jax.jit(drafts, donate_argnums=(1,))

    def compile(self, progress: Callable[[int, int], None] = lambda done, of: None) -> None:
        """See `Drafter`."""
        super().compile(progress)
        for n_rows in self.batch_sizes():
            self._drafts([], np.zeros(n_rows, np.int32))
        jax.block_until_ready(self._cache)

    def read_prompts(self, rows: Sequence[Row]) -> None:
        """See `Drafter`."""
        for batch in self.batches(rows):
            self.logits(batch)

    def propose(self, rows: Sequence[Row], wanted: Sequence[int]) -> list[list[int]]:
        """See `Drafter`."""
        if not any(wanted):
            return [[] for _ in rows]
        wanted_B = np.zeros(self._n_rows(rows), np.int32)
        wanted_B[: len(rows)] = wanted
        drafted_BK = jax.device_get(self._drafts([self._caught_up(row) for row in rows], wanted_B))
        for row, n in zip(rows, wanted, strict=True):
            self._n_cached[row.live] = row.past + n
        return [drafted_BK[i, :n].tolist() for i, n in enumerate(wanted)]

    def _caught_up(self, row: Row) -> Row:
        """A row with the token that its last drafts ended with, if that was accepted.

        Keys and values of a drafted token are written when the next one is drafted.
        """
        if self._n_cached.get(row.live, row.past) != row.past - 1:
            return row
        return replace(row, tokens=row.live.tokens[row.past - 1 :], past=row.past - 1)

    def _drafts(self, rows: Sequence[Row], wanted_B: np.ndarray) -> Array:
        """Drafted tokens [B,K]."""
        n_rows = len(wanted_B)
        tokens_BT, _, _, past_B, new_B, tables_BM = self._arrays(rows, n_rows, MOST_NEW)
        positions = [row.length for row in rows]
        how = draw_of([row.live for row in rows], positions, n_rows)
        self._cache, drafted_BK = self._draft(
            self.weights, self._cache, tokens_BT, past_B, new_B, tables_BM, wanted_B, how
        )
        return drafted_BK


def _draft(
    forward: PagedForward,
    n_drafted: int,
    weights: Tree,
    cache: list[Tree],
    tokens_BT: Array,
    past_B: Array,
    new_B: Array,
    tables_BM: Array,
    wanted_B: Array,
    how: Draw | None,
) -> tuple[list[Tree], Array]:
    """Draft one token after another; return (cache, drafted tokens [B,K])."""
    run = forward.function()
    new_B = jnp.where(wanted_B > 0, new_B, 0)
    cache, logits_BV = run(weights, cache, tokens_BT, past_B, new_B, tables_BM)
    first_B = draw(logits_BV, how).token_B

    def step(carry: tuple[list[Tree], Array], i: Array) -> tuple[tuple[list[Tree], Array], Array]:
        cache, token_B = carry
        is_wanted_B = (wanted_B > i).astype(jnp.int32)
        cache, logits_BV = run(
            weights, cache, token_B[:, None], past_B + new_B + i - 1, is_wanted_B, tables_BM
        )
        how_i = None if how is None else how._replace(position_B=how.position_B + i)
        token_B = draw(logits_BV, how_i).token_B
        return (cache, token_B), token_B

    (cache, _), rest_KB = lax.scan(step, (cache, first_B), jnp.arange(1, n_drafted))
    return cache, jnp.concatenate([first_B[None], rest_KB]).T
