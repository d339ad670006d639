"""Products of a piece of the tokens while the next piece travels (collective matmul).

With sequence parallelism each chip of `tensor` has its part of the tokens. Before the first
products of a block the parts go round the chips, both ways at once, and a product takes each as it
arrives; after its last product sums go round, and each chip adds its part to what passes. So all
but the first piece travels under a product of another (Wang et al., ASPLOS 2023).

Between the two, tokens lie in pieces in the order in which they arrived: those of the chip itself,
of the one before, of the one behind, of the second before, and so on. They follow each other along
the first dim, that of sequences, so that each lies in one place of the memory.

x_BT.. have B sequences of T tokens, x_PT.. pieces of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Array = jax.Array
PIECES, TOKENS = 0, 1  # dims of an array


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Chips that pass pieces on.

    Args:
        names: mesh axes.
        n: chips, two or more.
    """

    names: tuple[str, ...]
    n: int

    @property
    def sources(self) -> tuple[int, ...]:
        """How many places behind this chip each piece comes from, in the order of arrival.

        >>> Round(names=("tensor",), n=4).sources
        (0, -1, 1, -2)
        """
        far = [(-i, i) for i in range(1, self.n // 2 + 1)]
        return (0, *(place for both in far for place in both))[: self.n]

    def gather(self, x: Array) -> Array:
        """All tokens as they arrive, of those of this chip."""
        found, before, behind = [x], x, x
        for i in range(1, self.n):
            if i % 2:
                before = self._passed(before, 1)
            else:
                behind = self._passed(behind, -1)
            found.append(before if i % 2 else behind)
        return jnp.concatenate(found, axis=PIECES)

    def scatter(self, x: Array) -> Array:
        """The sums over chips of this chip's tokens; what `gather` does, backwards."""
        own, *others = jnp.split(x, self.n, axis=PIECES)
        for step, mine in ((-1, others[::2]), (1, others[1::2])):
            passing: Array | None = None
            for piece in reversed(mine):
                passing = self._passed(piece if passing is None else passing + piece, step)
            own = own if passing is None else own + passing
        return own

    def _passed(self, x: Array, step: int) -> Array:
        to = [(i, (i + step) % self.n) for i in range(self.n)]
        return lax.ppermute(x, self.names, to)

    def product(self, one: Callable[[Any, Any], Any], x: Array, w: Array) -> Array:
        """A product, piece after piece; its gradient of the weight is one product.

        Args:
            one: the product of some tokens.
        """

        @jax.custom_vjp
        def products(x: Array, w: Array) -> Array:
            return self._each(lambda piece: one(piece, w), x)

        def forward(x: Array, w: Array) -> tuple[Array, tuple[Array, Array]]:
            return products(x, w), (x, w)

        def backward(kept: tuple[Array, Array], dy: Array) -> tuple[Array, Array]:
            x, w = kept
            some = jnp.zeros_like(x[: len(x) // self.n])
            _, of_tokens = jax.vjp(lambda piece: one(piece, w), some)
            _, of_weight = jax.vjp(lambda w: one(x, w), w)
            return self._each(lambda piece: of_tokens(piece)[0], dy), of_weight(dy)[0]

        products.defvjp(forward, backward)
        return products(x, w)

    def _each(self, function: Callable[[Array], Array], x: Array) -> Array:
        pieces = jnp.split(x, self.n, axis=PIECES)
        return jnp.concatenate([function(piece) for piece in pieces], axis=PIECES)

    def in_sequence(self, x: Array) -> Array:
        """x_BT.. of x_PT..: whole sequences of what lies in pieces."""
        return _reordered(x, self, back=False)

    def as_arrived(self, x: Array) -> Array:
        """The other way."""
        return _reordered(x, self, back=True)

    def places(self, size: int) -> list[Any]:
        """Where in the sequence each piece of `size` tokens begins."""
        here = lax.axis_index(self.names)
        return [(here + source) % self.n * size for source in self.sources]


def _reordered(x: Array, chips: Round, *, back: bool) -> Array:
    """Both ways are the gradient of the other."""

    @jax.custom_vjp
    def moved(x: Array) -> Array:
        return _taken(x, chips) if back else _put(x, chips)

    moved.defvjp(
        lambda x: (moved(x), None),
        lambda _, dy: (_put(dy, chips) if back else _taken(dy, chips),),
    )
    return moved(x)


def _put(x: Array, chips: Round) -> Array:
    pieces = jnp.split(x, chips.n, axis=PIECES)
    found = jnp.zeros_like(jnp.concatenate(pieces, axis=TOKENS))
    for piece, at in zip(pieces, chips.places(pieces[0].shape[TOKENS]), strict=True):
        found = lax.dynamic_update_slice_in_dim(found, piece, at, TOKENS)
    return found


def _taken(x: Array, chips: Round) -> Array:
    size = x.shape[TOKENS] // chips.n
    pieces = [lax.dynamic_slice_in_dim(x, at, size, TOKENS) for at in chips.places(size)]
    return jnp.concatenate(pieces, axis=PIECES)
