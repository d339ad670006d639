"""A pass through the stages of a pipeline, which have the layers of a model in equal parts.

The pass is divided into microbatches, as many as there are stages where its shape allows: by rows,
or a single row by its tokens. In each tick a stage runs its layers on one microbatch and sends the
result to the next stage. Stages wait in the first and the last ticks of a pass (GPipe, arXiv
1811.06965): with S microbatches, S - 1 of 2S - 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax import lax

from shardwise.runtime.serving.paged_cache import NewTokens
from shardwise.runtime.weights.descriptions import Tree

Array = jax.Array
RunLayers = Callable[[Array, list[Tree], NewTokens], tuple[Array, list[Tree]]]


@dataclass(frozen=True, slots=True)
class Microbatches:
    """The division of a pass.

    Args:
        tokens: of the pass.
        n: number of microbatches.
        by_rows: whether rows are divided, not the tokens of each row.
    """

    tokens: NewTokens
    n: int
    by_rows: bool

    def split(self, x_BTD: Array) -> Array:
        """[B,T,..] as [M,b,t,..]."""
        B, T, *shape = x_BTD.shape
        if self.by_rows:
            return x_BTD.reshape(self.n, B // self.n, T, *shape)
        return x_BTD.reshape(B, self.n, T // self.n, *shape).swapaxes(0, 1)

    def join(self, x_MBTD: Array) -> Array:
        """[M,b,t,..] as [B,T,..]."""
        M, B, T, *shape = x_MBTD.shape
        if self.by_rows:
            return x_MBTD.reshape(M * B, T, *shape)
        return x_MBTD.swapaxes(0, 1).reshape(B, M * T, *shape)

    def tokens_of(self, index: Array, is_real: Array) -> NewTokens:
        """The tokens of a microbatch; none unless `is_real`."""
        tokens = self.tokens
        if self.by_rows:
            n_tokens = tokens.n_tokens
            past_B, new_B, tables_BM = (
                x.reshape(self.n, -1, *x.shape[1:])[index]
                for x in (tokens.past_B, tokens.new_B, tokens.tables_BM)
            )
        else:
            n_tokens = tokens.n_tokens // self.n
            past_B, tables_BM = tokens.past_B + index * n_tokens, tokens.tables_BM
            new_B = jnp.clip(tokens.new_B - index * n_tokens, 0, n_tokens)
        new_B = jnp.where(is_real, new_B, 0)
        past_B = jnp.where(new_B > 0, past_B, 0)  # attention would read them in vain
        return replace(tokens, past_B=past_B, new_B=new_B, tables_BM=tables_BM, n_tokens=n_tokens)


def microbatches(tokens: NewTokens, n_stages: int) -> Microbatches:
    """Divide a pass evenly; a shape that stages do not divide is one microbatch."""
    if len(tokens.past_B) % n_stages == 0:
        return Microbatches(tokens, n_stages, by_rows=True)
    if tokens.n_tokens % n_stages == 0:
        return Microbatches(tokens, n_stages, by_rows=False)
    return Microbatches(tokens, 1, by_rows=True)


def run_stages(
    run_layers: RunLayers,
    axes: tuple[str, ...],
    x_BTD: Array,
    cache: list[Tree],
    tokens: NewTokens,
) -> tuple[Array, list[Tree]]:
    """Run all layers of a model, inside `shard_map`.

    Args:
        run_layers: runs the layers of this stage on the tokens of a microbatch.
        axes: mesh axes along which stages follow each other.
        x_BTD: the residual before the first layer, on all stages.
        cache: that of this stage's layers.

    Returns:
        (the residual after the last layer, which is zero on all stages but the last; the cache)
    """
    n_stages = lax.axis_size(axes)
    stage = lax.axis_index(axes)
    parts = microbatches(tokens, n_stages)
    x_MBTD = parts.split(x_BTD)

    def tick(
        carry: tuple[Array, list[Tree], Array], t: Array
    ) -> tuple[tuple[Array, list[Tree], Array], None]:
        received_BTD, cache, results_MBTD = carry
        index = jnp.clip(t - stage, 0, parts.n - 1)
        is_real = index == t - stage
        x_BTD = jnp.where(stage == 0, x_MBTD[index], received_BTD)
        x_BTD, cache = run_layers(x_BTD, cache, parts.tokens_of(index, is_real))
        is_result = is_real & (stage == n_stages - 1)
        results_MBTD = results_MBTD.at[jnp.where(is_result, index, parts.n)].set(x_BTD, mode="drop")
        with jax.named_scope("stage.send"):
            sent_BTD = lax.ppermute(x_BTD, axes, [(s, s + 1) for s in range(n_stages - 1)])
        return (sent_BTD, cache, results_MBTD), None

    start = (jnp.zeros_like(x_MBTD[0]), cache, jnp.zeros_like(x_MBTD))
    ticks = jnp.arange(parts.n + n_stages - 1)
    (_, cache, results_MBTD), _ = lax.scan(tick, start, ticks)
    return parts.join(results_MBTD), cache
