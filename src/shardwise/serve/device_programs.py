"""The device's side of an engine: weights, cache, and the programs that run on them.

The last token of each running sequence stays on the device, in its slot, so that a decode step can
start before the host has read the tokens of the step before.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from numpy.typing import NDArray

from shardwise.runtime.kernels import cpu_rows
from shardwise.runtime.serving.forward import PagedForward
from shardwise.runtime.serving.sampling import (
    Changes,
    Draw,
    Drawn,
    LogProbabilities,
    Verified,
    draw,
    score,
    verify,
)
from shardwise.runtime.weights.descriptions import Tree
from shardwise.serve.host_cache import HostCache
from shardwise.serve.kv_blocks import BlockTransfer
from shardwise.simulate.host_tier import Copies

Array = jax.Array
Ints = NDArray[np.int32]
Bools = NDArray[np.bool_]
DECODE, PREFILL = "decode", "prefill"  # names of programs
# Of a decode step on one GPU: XLA multiplies fewer by another kind of kernel. On an H100 a step of
# an 8B model in bf16 took 7.2 ms with one row, 6.4 ms with four (`bench/accelerator.py`).
LEAST_GPU_ROWS = 4
Program = tuple[int, int, bool]  # rows of all pools, new tokens of each, whether all logits return
Tell = Callable[[str, Sequence[Any]], None]  # tells other processes of a call and its arguments


@dataclass(kw_only=True)
class DevicePrograms:
    """Weights, cache and compiled programs of one engine, with arguments on the host.

    Args:
        forward: the forward pass.
        weights: weights, on the devices.
        max_sequences: the most rows of a pool in a batch.
        n_host_blocks: blocks of host memory that keep what the cache evicts, of all pools.
    """

    forward: PagedForward
    weights: Tree
    max_sequences: int
    n_host_blocks: int = 0
    _cache: list[Tree] = field(init=False)
    _last_token_S: Array = field(init=False)

    def __post_init__(self) -> None:
        if self.forward.by_layer:  # before the cache takes the rest of the memory
            self.weights = self.forward.weights_by_layer(self.weights)
        self._cache_formats = self.forward.cache_formats()
        self._cache = jax.jit(self.forward.init_cache, out_shardings=self._cache_formats)()
        self._replicated = NamedSharding(self.forward.engine.table.mesh.jax_mesh, PartitionSpec())
        # The slot after the last one belongs to padding.
        zeros = np.zeros(self.n_slots + 1, np.int32)
        self._last_token_S = jax.device_put(zeros, self._replicated)
        self._compiler_options: dict[str, Any] = {}
        if self.forward.by_layer and self.forward.engine.table.mesh.platform == "cpu":
            self._compiler_options = cpu_rows.compiler_options()
        self._runs = {
            name: jax.jit(
                _named(name, functools.partial(_run, self.forward)),
                static_argnames="all_logits",
                donate_argnums=(1,),
                out_shardings=(self._cache_formats, None),
                compiler_options=self._compiler_options,
            )
            for name in (DECODE, PREFILL)
        }
        # Each process of the engine reads what is drawn, so its devices have all of it.
        drawn: dict[str, Any] = {"static_argnames": "n_top", "out_shardings": self._replicated}
        self._draw = jax.jit(_draw, donate_argnums=(1,), **drawn)
        self._verify = jax.jit(verify, **drawn)
        self._score = jax.jit(
            score, static_argnames="n_top", out_shardings=(None, self._replicated)
        )
        self._compiled: dict[Program, Callable[..., tuple[list[Tree], Array]]] = {}
        self.transfer = BlockTransfer(self.forward)
        self._host_cache: HostCache | None = None
        self._logits: Array  # of the last forward pass
        self.tell: Tell | None = None
        if self.n_host_blocks:
            self._host_cache = HostCache(self.forward, self._cache, self.n_host_blocks)

    @property
    def n_pools(self) -> int:
        """Number of groups of chips with sequences and a cache of their own."""
        return self.forward.engine.n_pools

    @property
    def n_slots(self) -> int:
        """Number of slots; a sequence that has ended keeps its slot until the host knows it."""
        return 2 * self.max_sequences * self.n_pools

    def run_of(self, length: int) -> Any:
        """The forward pass over rows of `length` new tokens; its name is read in profiles."""
        return self._runs[DECODE if length == 1 else PREFILL]

    def perform(self, call: str, *arguments: Any) -> Any:
        """Issue work to the devices; all that changes them after `compile` goes through here.

        The other processes of the engine repeat it (`followers`), in the same order.

        Args:
            call: `forward`, `draw`, `verify`, `score` or `copy`.
            arguments: of the method with that name, on the host.
        """
        if self.tell is not None:
            self.tell(call, arguments)
        return getattr(self, f"_perform_{call}")(*arguments)

    def _perform_forward(self, all_logits: bool, *batch: Ints | Bools) -> Array:
        run = self._compiled.get((*batch[0].shape, all_logits))
        if run is None:
            run = functools.partial(self.run_of(batch[0].shape[1]), all_logits=all_logits)
        arguments = (self.weights, self._cache, self._last_token_S)
        self._cache, self._logits = run(*arguments, *batch)
        return self._logits

    def _perform_draw(self, n_top: int | None, slot_B: Ints, how: Any, changes: Any) -> Drawn:
        self._last_token_S, drawn = self._draw(
            self._logits,
            self._last_token_S,
            slot_B,
            how and Draw(*how),
            changes and Changes(*changes),
            n_top=n_top,
        )
        return drawn

    def _perform_verify(
        self, n_top: int | None, drafted_BK: Ints, n_drafted_B: Ints, how: Any, changes: Any
    ) -> Verified:
        how, changes = how and Draw(*how), changes and Changes(*changes)
        verified: Verified = self._verify(
            self._logits, drafted_BK, n_drafted_B, how, changes, n_top=n_top
        )
        return verified

    def _perform_score(self, n_top: int, next_BT: Ints, last_B: Ints) -> LogProbabilities:
        self._logits, scores = self._score(self._logits, next_BT, last_B, n_top=n_top)
        return scores

    def _perform_copy(self, *copies: Any) -> None:
        if self._host_cache is not None:
            self._cache = self._host_cache.copy(self._cache, Copies(*copies))


def _named(name: str, function: Any) -> Any:
    function.__name__ = name
    return function


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
    batch = (tokens_BT, past_B, new_B, tables_BM)
    n_rows, n_tokens = tokens_BT.shape
    mesh = forward.engine.table.mesh
    if n_tokens == 1 and mesh.jax_mesh.size == 1 and mesh.platform == "gpu":
        # Rows of padding have no new token, so that they write nothing.
        n_padding = max(0, LEAST_GPU_ROWS - n_rows)
        batch = jax.tree.map(
            lambda x: jnp.pad(x, [(0, n_padding), *[(0, 0)] * (x.ndim - 1)]), batch
        )
    cache, logits = run(weights, cache, *batch)
    return cache, logits[:n_rows]


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
