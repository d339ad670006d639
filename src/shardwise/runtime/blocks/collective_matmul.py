"""Collective matmul: the product of one piece of the tokens overlaps the transfer of the next.

With sequence parallelism each chip of `tensor` has one piece of the tokens. Before the first
products of a block these pieces travel around the ring of chips in both directions at once, and
each piece is multiplied when it arrives. After the block's last product partial sums travel around
the ring, and each chip adds its own to the sum that it passes on. So every transfer but the first
overlaps with the product of another piece (Wang et al., ASPLOS 2023).

Between these products a chip has the pieces in order of arrival: its own, that of its predecessor,
of its successor, of its second predecessor, and so on. They are concatenated along dim 0, that of
sequences, so that each piece is contiguous in memory.

Arrays x_BT.. have B whole sequences of T tokens. Arrays x_PT.. have P = n B pieces: the B sequences
of the first of n pieces, then those of the second, and so on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Array = jax.Array
PIECES = 0  # index of the dim of pieces (or sequences)
TOKENS = 1  # index of the dim of tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveMatmul:
    """A ring of chips that overlap their products with the transfer of tokens.

    Args:
        axes: mesh axes of the ring.
        order: indices of the chips along these axes, at least 2, in the order of the ring.
    """

    axes: tuple[str, ...]
    order: tuple[int, ...]

    @property
    def n(self) -> int:
        """Number of chips."""
        return len(self.order)

    @property
    def sources(self) -> tuple[int, ...]:
        """Offset on the ring of the chip from which each piece comes, in order of arrival.

        >>> CollectiveMatmul(axes=("tensor",), order=(0, 1, 2, 3)).sources
        (0, -1, 1, -2)
        """
        offsets = [0]
        for distance in range(1, self.n // 2 + 1):
            offsets += [-distance, distance]
        return tuple(offsets[: self.n])

    def gather(self, x: Array) -> Array:
        """Gather the pieces of all chips in order of arrival; x is this chip's piece."""
        pieces = [x]
        from_predecessors = x
        from_successors = x
        for step in range(1, self.n):
            if step % 2:
                from_predecessors = self._send(from_predecessors, 1)
                pieces.append(from_predecessors)
            else:
                from_successors = self._send(from_successors, -1)
                pieces.append(from_successors)
        return jnp.concatenate(pieces, axis=PIECES)

    def scatter(self, x: Array) -> Array:
        """Sum partial sums over chips, and keep this chip's piece: the transpose of `gather`."""
        total, *received = jnp.split(x, self.n, axis=PIECES)
        for offset, pieces in ((-1, received[::2]), (1, received[1::2])):
            passing: Array | None = None
            for piece in reversed(pieces):
                passing = self._send(piece if passing is None else passing + piece, offset)
            if passing is not None:
                total = total + passing
        return total

    def _send(self, x: Array, offset: int) -> Array:
        """Send x to the chip `offset` places ahead on the ring; return what arrives."""
        pairs = [(chip, self.order[(i + offset) % self.n]) for i, chip in enumerate(self.order)]
        return lax.ppermute(x, self.axes, pairs)

    def product(self, multiply: Callable[[Any, Any], Any], x: Array, w: Array) -> Array:
        """Multiply one piece after the other; the gradient of the weight is a single product.

        Args:
            multiply: function that multiplies pieces of the tokens by the weight.
            x: all pieces, in order of arrival.
        """

        @jax.custom_vjp
        def products(x: Array, w: Array) -> Array:
            return self.map_pieces(lambda piece: multiply(piece, w), x)

        def forward(x: Array, w: Array) -> tuple[Array, tuple[Array, Array]]:
            return products(x, w), (x, w)

        def backward(residuals: tuple[Array, Array], dy: Array) -> tuple[Array, Array]:
            x, w = residuals
            zeros = jnp.zeros_like(x[: len(x) // self.n])
            _, pull_tokens = jax.vjp(lambda piece: multiply(piece, w), zeros)
            _, pull_weight = jax.vjp(lambda w: multiply(x, w), w)
            return self.map_pieces(lambda piece: pull_tokens(piece)[0], dy), pull_weight(dy)[0]

        products.defvjp(forward, backward)
        return products(x, w)

    def map_pieces(self, function: Callable[[Any], Array], x: Any) -> Array:
        """Apply a function to one piece after the other of an array, or of a tree of arrays."""
        arrays, tree = jax.tree.flatten(x)
        pieces = zip(*(jnp.split(array, self.n, axis=PIECES) for array in arrays), strict=True)
        results = [function(jax.tree.unflatten(tree, piece)) for piece in pieces]
        return jnp.concatenate(results, axis=PIECES)

    def to_sequence_order(self, x: Array) -> Array:
        """Reorder pieces x_PT.. to whole sequences x_BT..."""
        return _reorder(x, _to_sequences, _to_pieces, self)

    def to_arrival_order(self, x: Array) -> Array:
        """Reorder whole sequences x_BT.. to pieces x_PT.. in order of arrival."""
        return _reorder(x, _to_pieces, _to_sequences, self)

    def starts(self, size: int) -> list[Any]:
        """Position in the sequence of the first token of each piece; pieces have `size` tokens."""
        order = jnp.array(self.order)
        place = jnp.argsort(order)[lax.axis_index(self.axes)]
        return [order[(place + source) % self.n] * size for source in self.sources]


_Reordering = Callable[[Array, CollectiveMatmul], Array]


def _reorder(
    x: Array, reordering: _Reordering, inverse: _Reordering, ring: CollectiveMatmul
) -> Array:
    """Apply a reordering whose gradient is its inverse."""

    @jax.custom_vjp
    def reordered(x: Array) -> Array:
        return reordering(x, ring)

    reordered.defvjp(lambda x: (reordered(x), None), lambda _, dy: (inverse(dy, ring),))
    return reordered(x)


def _to_sequences(x: Array, ring: CollectiveMatmul) -> Array:
    """Put each piece at its position in the sequence."""
    pieces = jnp.split(x, ring.n, axis=PIECES)
    sequences = jnp.zeros_like(jnp.concatenate(pieces, axis=TOKENS))
    for piece, start in zip(pieces, ring.starts(pieces[0].shape[TOKENS]), strict=True):
        sequences = lax.dynamic_update_slice_in_dim(sequences, piece, start, TOKENS)
    return sequences


def _to_pieces(x: Array, ring: CollectiveMatmul) -> Array:
    """Cut sequences into pieces, in order of arrival."""
    size = x.shape[TOKENS] // ring.n
    pieces = [lax.dynamic_slice_in_dim(x, start, size, TOKENS) for start in ring.starts(size)]
    return jnp.concatenate(pieces, axis=PIECES)
