"""Products of activations and weights: the moves that the sharding algebra derives, then an einsum.

Letters of arrays: B sequences, T tokens, D model width, N heads, K key and value heads, H head
width, F feed-forward width, V vocabulary, E experts.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from shardwise.ops.einsum import Array as Named
from shardwise.ops.einsum import Einsum
from shardwise.ops.layers import Term
from shardwise.ops.program import shard_einsum, weight_names
from shardwise.ops.sharded import Move, Program, derive
from shardwise.runtime.blocks.collective_matmul import Round
from shardwise.runtime.kernels import cpu
from shardwise.runtime.layout.sharding import Table
from shardwise.runtime.training.gradient_sync import UpdatePartition
from shardwise.runtime.training.int8_reduce import ErrorFeedback
from shardwise.runtime.weights import quantized
from shardwise.runtime.weights.quantized import Scaled

Array = jax.Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Dtypes of a step: what products compute in, what gradients are summed and held in.

    `narrow` is the dtype of both sides of a product with scaled weights, None for `compute`.
    """

    compute: Any
    gradients: Any = None
    reduce: Any = None
    narrow: Any = None


@dataclass(slots=True, kw_only=True)
class Block:
    """The products of one block, as the planner counts them: their common input is moved once, and
    what they add to the output is summed on the chip before it is moved once.

    Args:
        table: rules on the mesh.
        terms: by name, of `ops.layers`.
        weights: name -> array of this layer, and where its gradient is held (see `gathered`);
            None there where nothing is differentiated, and only there arrays may be `Scaled`.
        deals: name -> how copies of this weight share its update.
        precision: of the step.
        chips: that pass tokens on while products of others run; None for collectives before and
            after products. Between them tokens then lie in pieces.
    """

    table: Table
    terms: Mapping[str, Term]
    weights: Mapping[str, tuple[Any, Any]]
    deals: Mapping[str, UpdatePartition]
    precision: Precision
    chips: Round | None = None
    _output: tuple[Array, tuple[Move, ...]] | None = None
    _last: str = ""

    def program(self, name: str) -> Program:
        """How the table lays this product out."""
        weights = weight_names(tuple(self.terms.values()))
        return _program(self.terms[name].einsum, weights, tuple(self.table.rules.items()))

    def enter(self, x: Array, name: str, *, right: bool = False) -> Array:
        """The left (or right) input of a term as its product takes it."""
        einsum = self.program(name).einsum
        with jax.named_scope(name):
            for move in _of(
                self.program(name).before, (einsum.right if right else einsum.left).name
            ):
                passed = self.chips if move.kind == "all_gather" else None
                x = passed.gather(x) if passed else self.table.apply(move, x)
        return x

    def product(self, name: str, x: Array) -> Array:
        """An input that has entered times the weight of a term, on this chip."""
        return self.times(name, x, self.operand(name))

    def times(self, name: str, x: Array, w: Any) -> Array:
        """The same with a weight that has been fetched."""
        letters = _letters(self.program(name))

        def one(x: Any, w: Any) -> Any:
            if self.table.on.platform == "cpu":
                return cpu.product(letters, x, w, wide=name == "unembed")
            return jnp.einsum(letters, x, w)

        with jax.named_scope(name):
            if isinstance(w, Scaled):
                return quantized.product(letters, x, w, self.precision.narrow)
            return self.chips.product(one, x, w) if self.chips else one(x, w)

    def in_sequence(self, x: Array) -> Array:
        """What a product has made, in whole sequences."""
        return self.chips.in_sequence(x) if self.chips else x

    def as_arrived(self, x: Array) -> Array:
        """Whole sequences as a product of this block takes them."""
        return self.chips.as_arrived(x) if self.chips else x

    def operand(self, name: str) -> Any:
        """The weight of a term as its product takes it."""
        program = self.program(name)
        weight = program.einsum.right.name
        with jax.named_scope(name):
            return self.weight(weight, _of(program.before, weight))

    def statistic(self, name: str) -> Array:
        """An array beside the weights that no gradient changes, as it is held."""
        return jax.lax.stop_gradient(self.weights[name][0])

    def weight(self, name: str, moves: tuple[Move, ...] = ()) -> Any:
        """A weight in the dtype of products, gathered where the table shards a summed dim."""
        array, holder = self.weights[name]
        if holder is None:
            return self._fetched(array, moves)
        gathers = tuple(m for m in moves if m.kind == "all_gather")
        array = self._gathered(array, holder, gathers, self.deals[name])
        for move in moves:
            if move.kind != "all_gather":
                array = self.table.apply(move, array)
        return array

    def _fetched(self, w: Array | Scaled, moves: tuple[Move, ...]) -> Any:
        """A weight of which no gradient is asked; scaled ones stay where they are."""
        if isinstance(w, Scaled):
            return w
        x = w.astype(self.precision.compute)
        for move in moves:
            x = self.table.apply(move, x)
        return x

    def _gathered(
        self, w: Array, holder: Array, moves: tuple[Move, ...], deal: UpdatePartition
    ) -> Array:
        """A weight as products take it: cast, then gathered.

        Gradients may be wider than the weights that they belong to, and lie in smaller parts, which
        differentiation does not allow. So a step is differentiated for `holder`, an array that
        nothing reads: what flows back to the weight is summed over the chips that gathered it, and
        over copies if it is time, in `precision.reduce`; it arrives there in `precision.gradients`.
        Where that sum is rounded, the holder has what was lost before, and gets what is lost now.
        """
        table, precision = self.table, self.precision

        @jax.custom_vjp
        def fetch(w: Array, holder: Array | ErrorFeedback) -> Array:
            x = w.astype(precision.compute)
            for move in moves:
                x = table.apply(move, x)
            return x

        def forward(w: Array, holder: Array | ErrorFeedback) -> tuple[Array, Array | None]:
            return fetch(w, holder), holder.residual if isinstance(holder, ErrorFeedback) else None

        def backward(lost: Array | None, ct: Array) -> tuple[None, Array | ErrorFeedback]:
            ct = ct.astype(precision.reduce)
            for move in reversed(moves):
                ct = table.transpose(move, ct)
            if lost is not None:
                found = deal.reduce_int8(ct, lost)
                return None, found._replace(gradient=found.gradient.astype(precision.gradients))
            ct = deal.reduce(ct) if deal.in_backward else ct
            return None, ct.astype(precision.gradients)

        fetch.defvjp(forward, backward)
        return fetch(w, holder)

    def add(self, name: str, x: Array) -> None:
        """Add the product of a term to the output of the block."""
        self.put(name, self.product(name, x))

    def put(self, name: str, y: Array) -> None:
        """Add to the output of the block what a term, or what stands for it, has given."""
        moves = self.program(name).after
        self._output = (y if self._output is None else self._output[0] + y, moves)
        self._last = name

    def leave(self) -> Array:
        """The output of the block, summed over chips and laid out as the residual."""
        if self._output is None:
            raise ValueError("a block without output")
        y, moves = self._output
        with jax.named_scope(self._last):
            for move in moves:
                passed = self.chips if move.kind == "reduce_scatter" else None
                y = passed.scatter(y) if passed else self.table.apply(move, y)
        return y


@functools.lru_cache(maxsize=1024)
def _program(einsum: Einsum, weights: frozenset[str], rows: tuple[Any, ...]) -> Program:
    return derive(shard_einsum(einsum, weights, dict(rows)))


def _of(moves: Iterable[Move], name: str) -> tuple[Move, ...]:
    return tuple(move for move in moves if move.before.name == name)


def _letters(program: Program) -> str:
    """`abc,cd->abd` of an einsum over named dims."""
    einsum = program.einsum
    letters = {d: chr(ord("a") + i) for i, d in enumerate(einsum.dims)}

    def text(array: Named) -> str:
        return "".join(letters[d] for d in array.names)

    return f"{text(einsum.left)},{text(einsum.right)}->{text(einsum.output)}"
