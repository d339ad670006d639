"""Products of activations and weights: the collectives that the sharding algebra derives, and an
einsum.

Letters of arrays: B sequences, T tokens, D model width, N heads, K heads of keys and values, H head
width, F feed-forward width, V vocabulary, E experts.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from shardwise.ops.einsum import Array as NamedArray
from shardwise.ops.einsum import Einsum
from shardwise.ops.layers import Term
from shardwise.ops.program import shard_einsum, weight_names
from shardwise.ops.sharded import Move, Program, derive
from shardwise.runtime.blocks.collective_matmul import CollectiveMatmul
from shardwise.runtime.kernels import cpu
from shardwise.runtime.layout.sharding import Table
from shardwise.runtime.training.gradient_sync import Deal
from shardwise.runtime.training.int8_reduce import Owing
from shardwise.runtime.weights import quantized
from shardwise.runtime.weights.quantized import Scaled

Array = jax.Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Dtypes of a step.

    Args:
        compute: of products.
        gradients: in which gradients are stored.
        reduce: in which gradients are summed over chips.
        narrow: of both operands of a product with `Scaled` weights; None for `compute`.
    """

    compute: Any
    gradients: Any = None
    reduce: Any = None
    narrow: Any = None


@dataclass(slots=True, kw_only=True)
class BlockProducts:
    """Products of one block, as the planner counts them: their common input is gathered once, and
    their outputs are summed on the chip before they are reduced once.

    Args:
        table: sharding rules on the mesh.
        terms: name -> term of `ops.layers`.
        weights: name -> (array of this layer, holder of its gradient: see `_gathered`). Holders are
            None where nothing is differentiated; only there arrays may be `Scaled`.
        partitions: name of a weight -> how its copies share its update.
        precision: dtypes of the step.
        ring: the ring over which tokens travel during products; None for collectives
            before and after products. With it tokens are in pieces between products.
    """

    table: Table
    terms: Mapping[str, Term]
    weights: Mapping[str, tuple[Any, Any]]
    partitions: Mapping[str, Deal]
    precision: Precision
    ring: CollectiveMatmul | None = None
    _output: tuple[Array, tuple[Move, ...]] | None = None
    _last_term: str = ""

    def program(self, name: str) -> Program:
        """Collectives and local einsum of a term."""
        weights = weight_names(tuple(self.terms.values()))
        return _program(self.terms[name].einsum, weights, tuple(self.table.rules.items()))

    def move_input(self, array: Array, name: str, *, right: bool = False) -> Array:
        """Run the collectives that bring the left (or right) input of a term to its product."""
        program = self.program(name)
        operand = program.einsum.right if right else program.einsum.left
        with jax.named_scope(name):
            for move in _moves_of(program.before, operand.name):
                if self.ring and move.kind == "all_gather":
                    array = self.ring.gather(array)
                else:
                    array = self.table.apply(move, array)
        return array

    def product(self, name: str, x: Array) -> Array:
        """Multiply an input that `move_input` returned by the weight of a term, on this chip."""
        return self.multiply(name, x, self.operand(name))

    def multiply(self, name: str, x: Array, w: Any) -> Array:
        """Multiply an input that `move_input` returned by a weight that `operand` returned."""
        equation = _equation(self.program(name))

        def einsum(x: Any, w: Any) -> Any:
            if self.table.mesh.platform == "cpu":
                return cpu.matmul_einsum(equation, x, w, wide=name == "unembed")
            return jnp.einsum(equation, x, w)

        with jax.named_scope(name):
            if isinstance(w, Scaled):
                return quantized.product(equation, x, w, self.precision.narrow)
            if self.ring:
                return self.ring.product(einsum, x, w)
            return einsum(x, w)

    def to_sequence_order(self, x: Array) -> Array:
        """Reorder the output of a product to whole sequences."""
        return self.ring.to_sequence_order(x) if self.ring else x

    def to_arrival_order(self, x: Array) -> Array:
        """Reorder whole sequences to the order in which products of this block take tokens."""
        return self.ring.to_arrival_order(x) if self.ring else x

    def operand(self, name: str) -> Any:
        """The weight of a term as its product takes it."""
        program = self.program(name)
        weight_name = program.einsum.right.name
        with jax.named_scope(name):
            return self.weight(weight_name, _moves_of(program.before, weight_name))

    def buffer(self, name: str) -> Array:
        """An array stored with the weights that has no gradient."""
        return jax.lax.stop_gradient(self.weights[name][0])

    def weight(self, name: str, moves: tuple[Move, ...] = ()) -> Any:
        """A weight in the dtype of products, gathered where the rules shard a contracted dim."""
        array, holder = self.weights[name]
        if holder is None:
            return self._fetched(array, moves)
        gathers = tuple(move for move in moves if move.kind == "all_gather")
        array = self._gathered(array, holder, gathers, self.partitions[name])
        for move in moves:
            if move.kind != "all_gather":
                array = self.table.apply(move, array)
        return array

    def _fetched(self, w: Array | Scaled, moves: tuple[Move, ...]) -> Any:
        """A weight without a gradient; a `Scaled` one is neither cast nor moved."""
        if isinstance(w, Scaled):
            return w
        array = w.astype(self.precision.compute)
        for move in moves:
            array = self.table.apply(move, array)
        return array

    def _gathered(self, w: Array, holder: Array, moves: tuple[Move, ...], partition: Deal) -> Array:
        """A weight as products take it: cast, then gathered.

        Gradients may be in a wider dtype and in smaller shards than their weights, which
        differentiation does not allow. So a step is differentiated with respect to `holder`, an
        array that nothing reads. The weight's cotangent is summed in `precision.reduce` over the
        chips that gathered it, and over copies if this microbatch synchronizes them; the holder's
        gradient is in `precision.gradients`. Where that sum is rounded, the holder carries the
        error feedback: the residual of the last sum comes in, that of this one goes out.
        """
        table = self.table
        precision = self.precision

        @jax.custom_vjp
        def fetch(w: Array, holder: Array | Owing) -> Array:
            array = w.astype(precision.compute)
            for move in moves:
                array = table.apply(move, array)
            return array

        def forward(w: Array, holder: Array | Owing) -> tuple[Array, Array | None]:
            feedback = holder.lost if isinstance(holder, Owing) else None
            return fetch(w, holder), feedback

        def backward(feedback: Array | None, ct: Array) -> tuple[None, Array | Owing]:
            ct = ct.astype(precision.reduce)
            for move in reversed(moves):
                ct = table.transpose(move, ct)
            if feedback is not None:
                rounded = partition.owing(ct, feedback)
                gradient = rounded.gradient.astype(precision.gradients)
                return None, rounded._replace(gradient=gradient)
            if partition.each:
                ct = partition.reduce(ct)
            return None, ct.astype(precision.gradients)

        fetch.defvjp(forward, backward)
        return fetch(w, holder)

    def add_product(self, name: str, x: Array) -> None:
        """Add the product of a term to the output of the block."""
        self.add_output(name, self.product(name, x))

    def add_output(self, name: str, output: Array) -> None:
        """Add to the output of the block an array that has the layout of a term's product."""
        if self._output is not None:
            output = self._output[0] + output
        self._output = (output, self.program(name).after)
        self._last_term = name

    def output(self) -> Array:
        """The output of the block, reduced over chips and in the layout of the residual."""
        if self._output is None:
            raise ValueError("the block has no output: call add_product first")
        output, moves = self._output
        with jax.named_scope(self._last_term):
            for move in moves:
                if self.ring and move.kind == "reduce_scatter":
                    output = self.ring.scatter(output)
                else:
                    output = self.table.apply(move, output)
        return output


@functools.lru_cache(maxsize=1024)
def _program(einsum: Einsum, weights: frozenset[str], rules: tuple[Any, ...]) -> Program:
    return derive(shard_einsum(einsum, weights, dict(rules)))


def _moves_of(moves: Iterable[Move], name: str) -> tuple[Move, ...]:
    """The moves of one array."""
    return tuple(move for move in moves if move.before.name == name)


def _equation(program: Program) -> str:
    """`abc,cd->abd` of an einsum over named dims."""
    einsum = program.einsum
    letters = {dim: chr(ord("a") + i) for i, dim in enumerate(einsum.dims)}

    def subscripts(array: NamedArray) -> str:
        return "".join(letters[dim] for dim in array.names)

    return f"{subscripts(einsum.left)},{subscripts(einsum.right)}->{subscripts(einsum.output)}"
