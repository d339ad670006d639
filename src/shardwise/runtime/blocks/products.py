"""Products of activations and weights: an einsum on each chip, between derived collectives.

The sharding algebra (`ops.sharded`) derives the collectives from the sharding rules.

Letters of arrays: B sequences, T tokens, D model width, N heads, K heads of keys and values, H head
width, F feed-forward width, V vocabulary, E experts.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from shardwise.ops.einsum import Array as NamedArray
from shardwise.ops.einsum import Einsum
from shardwise.ops.layers import Term
from shardwise.ops.program import shard_einsum, weight_names
from shardwise.ops.sharded import Move, Program, derive
from shardwise.runtime.blocks.collective_matmul import CollectiveMatmul
from shardwise.runtime.kernels import cpu, cpu_rows
from shardwise.runtime.kernels.cpu_rows import Rows
from shardwise.runtime.layout.sharding import Table
from shardwise.runtime.training.gradient_sync import UpdatePartition
from shardwise.runtime.training.int8_reduce import ErrorFeedback
from shardwise.runtime.weights import quantized
from shardwise.runtime.weights.quantized import Grouped, Scaled, dequantized, quantize

Array = jax.Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """Dtypes of a step.

    Args:
        compute: dtype of products.
        gradients: dtype in which gradients are stored.
        reduce: dtype in which gradients are summed over chips.
        narrow: dtype of both operands of a product with `Scaled` weights; None for `compute`.
    """

    compute: Any
    gradients: Any = None
    reduce: Any = None
    narrow: Any = None


@dataclass(frozen=True, slots=True)
class OfStack:
    """The weight of one layer in the array of a stack, read where it is used.

    A loop around a product reads it from memory there; a slice made before would be a copy. So it
    would be for a kernel, which takes the whole stack.

    Args:
        stacked: the weights [L,..] of the stack.
        index: index of the layer.
        for_kernel: whether the product is a kernel's.
    """

    stacked: Any
    index: Array
    for_kernel: bool = False

    def read(self) -> Any:
        """The weight."""
        return jax.tree.map(
            lambda x: jax.lax.dynamic_index_in_dim(x, self.index, keepdims=False), self.stacked
        )


@dataclass(slots=True, kw_only=True)
class BlockProducts:
    """The products of one block, with the collectives that a plan counts.

    The common input of products is gathered once. Their outputs are summed on the chip, and the sum
    is reduced over chips once.

    Args:
        table: sharding rules on the mesh.
        terms: name -> term of `ops.layers`, a product of the block.
        weights: name -> (array of this layer, accumulator of its gradient, see `_gathered`). The
            accumulator is None in serving, where the array may be `Scaled` or `Grouped`, and where
            weights themselves are differentiated.
        partitions: name of a weight -> how its copies share its update.
        precision: dtypes of the step.
        ring: ring of chips over which tokens travel during products; tokens are then in pieces
            between products. None for collectives before and after products.
    """

    table: Table
    terms: Mapping[str, Term]
    weights: Mapping[str, tuple[Any, Any]]
    partitions: Mapping[str, UpdatePartition]
    precision: Precision
    ring: CollectiveMatmul | None = None
    _output: tuple[Array, tuple[Move, ...]] | None = None
    _last_term: str = ""

    def program(self, name: str) -> Program:
        """Collectives and local einsum of a term."""
        weights = weight_names(tuple(self.terms.values()))
        return _program(self.terms[name].einsum, weights, tuple(self.table.rules.items()))

    def move_input(self, array: Array, name: str, *, right: bool = False) -> Any:
        """Run the collectives on the left (or right) input of a term that its product needs.

        The result is an array, or `Scaled` where products are narrow.
        """
        program = self.program(name)
        operand = program.einsum.right if right else program.einsum.left
        moves = _moves_of(program.before, operand.name)
        moved: Any = array
        with jax.named_scope(name):
            # Rows that chips have whole are quantized before they are sent.
            if moves and not right and self.precision.narrow and not self.table.width_roles:
                moved = quantize(array, self.precision.narrow, (-1,))
            for move in moves:
                moved = jax.tree.map(functools.partial(self._moved_input, move), moved)
        return moved

    def _moved_input(self, move: Move, x: Array) -> Array:
        """An input of products, or the scales of its rows, after a collective."""
        if self.ring and move.kind == "all_gather":
            return self.ring.gather(x)
        return self.table.apply(move, x)

    def product(self, name: str, x: Array) -> Array:
        """Multiply an input that `move_input` returned by the weight of a term."""
        return self.reduced(name, self.multiply(name, x, self.operand(name)))

    def reduced(self, name: str, y: Array) -> Array:
        """Sum a term's products over the chips that have different parts of the summed dim."""
        with jax.named_scope(name):
            for move in self.program(name).after:
                y = self.table.apply(move, y)
        return y

    def multiply(self, name: str, x: Array, w: Any) -> Array:
        """Multiply what `move_input` and `operand` returned, on this chip."""
        equation = _equation(self.program(name))

        def einsum(x: Any, w: Any) -> Any:
            if self.table.mesh.platform == "cpu":
                return cpu.matmul_einsum(equation, x, w, wide=name == "unembed")
            return jnp.einsum(equation, x, w)

        with jax.named_scope(name):
            if isinstance(w, Rows):
                return cpu_rows.product(equation, x, w)
            if isinstance(w, Scaled):
                return self._scaled(equation, x, w)
            if self.ring:
                return self.ring.product(einsum, x, w)
            return einsum(x, w)

    def _scaled(self, equation: str, x: Array | Scaled, w: Scaled) -> Array:
        """Multiply by a quantized weight, in a ring one piece of the tokens after the other."""

        def multiply(x: Array | Scaled) -> Array:
            return quantized.product(equation, x, w, self.precision.compute, self.precision.narrow)

        return self.ring.map_pieces(multiply, x) if self.ring else multiply(x)

    def to_sequence_order(self, x: Array) -> Array:
        """Reorder pieces in order of arrival to whole sequences; no change without a ring."""
        return self.ring.to_sequence_order(x) if self.ring else x

    def to_arrival_order(self, x: Array) -> Array:
        """Reorder whole sequences to pieces in order of arrival; no change without a ring."""
        return self.ring.to_arrival_order(x) if self.ring else x

    def operand(self, name: str) -> Any:
        """The weight of a term, cast and gathered for its product."""
        program = self.program(name)
        weight_name = program.einsum.right.name
        summed = set(program.einsum.contracting) - set(program.einsum.chosen)
        with jax.named_scope(name):
            return self.weight(weight_name, _moves_of(program.before, weight_name), summed)

    def _moved(self, w: Scaled, moves: tuple[Move, ...], summed: Collection[str]) -> Scaled:
        """A quantized weight after collectives, its scales where they have the dims that change."""
        values, scale = w
        for move in moves:
            values = self.table.apply(move, values)
            arrays = []
            for array in (move.before, move.after):
                dims = tuple(dim for dim in array.dims if dim.name not in summed)
                arrays.append(replace(array, dims=dims))
            if arrays[0] != arrays[1]:
                scale = self.table.apply(Move(move.kind, move.axes, *arrays), scale)
        return Scaled(values, scale)

    def buffer(self, name: str) -> Array:
        """An array that is stored with the weights but has no gradient."""
        return jax.lax.stop_gradient(self.weights[name][0])

    def weight(self, name: str, moves: tuple[Move, ...] = (), summed: Collection[str] = ()) -> Any:
        """A weight in the dtype of products, after the collectives `moves`.

        Args:
            summed: dims that its product sums, which a `Scaled` weight's scales do not have.
        """
        array, accumulator = self.weights[name]
        if accumulator is None:
            return self._fetched(array, moves, summed)
        gathers = tuple(move for move in moves if move.kind == "all_gather")
        array = self._gathered(array, accumulator, gathers, self.partitions[name])
        for move in moves:
            if move.kind != "all_gather":
                array = self.table.apply(move, array)
        return array

    def _fetched(
        self,
        w: Array | Scaled | Grouped | Rows | OfStack,
        moves: tuple[Move, ...],
        summed: Collection[str],
    ) -> Any:
        """A weight without an accumulator, cast and moved; `Rows`, and stacks for kernels, stay.

        A `Grouped` one is dequantized, which compilers fuse into the product: the sums of its
        groups have different scales, so that it cannot be multiplied as it is.
        """
        if isinstance(w, OfStack):
            return w if w.for_kernel and not moves else self._fetched(w.read(), moves, summed)
        if isinstance(w, Rows):
            return w
        if isinstance(w, Scaled):
            return self._moved(w, moves, summed)
        if isinstance(w, Grouped):
            array = dequantized(w, self.precision.compute)
        else:
            array = w.astype(self.precision.compute)
        for move in moves:
            array = self.table.apply(move, array)
        return array

    def _gathered(
        self, w: Array, accumulator: Array, moves: tuple[Move, ...], partition: UpdatePartition
    ) -> Array:
        """Cast a weight to the dtype of products, then gather it.

        A gradient may have a wider dtype and smaller shards than its weight, which `jax.grad` does
        not allow. So a step is differentiated with respect to `accumulator`, an array of zeros with
        the dtype and shape of the gradient, whose values nothing reads. The backward pass sums the
        weight's cotangent in `precision.reduce` over the chips that gathered the weight, and, if
        `partition.in_backward`, over the chips that have copies of it. It returns the sum in
        `precision.gradients` as the gradient of `accumulator`. If the sum over copies is rounded to
        int8, `accumulator` is an `ErrorFeedback` with the residual of the previous step, and its
        gradient is one with the new residual.
        """
        table = self.table
        precision = self.precision

        def gathered(w: Array) -> Array:
            array = w.astype(precision.compute)
            for move in moves:
                array = table.apply(move, array)
            return array

        @jax.custom_vjp
        def fetch(w: Array, accumulator: Array | ErrorFeedback) -> Array:
            return gathered(w)

        def forward(w: Array, accumulator: Array | ErrorFeedback) -> tuple[Array, Array | None]:
            feedback = accumulator.residual if isinstance(accumulator, ErrorFeedback) else None
            return gathered(w), feedback

        def backward(feedback: Array | None, ct: Array) -> tuple[None, Array | ErrorFeedback]:
            ct = ct.astype(precision.reduce)
            for move in reversed(moves):
                ct = table.transpose(move, ct)
            if feedback is not None:
                rounded = partition.reduce_int8(ct, feedback)
                gradient = rounded.gradient.astype(precision.gradients)
                return None, rounded._replace(gradient=gradient)
            if partition.in_backward:
                ct = partition.reduce(ct)
            return None, ct.astype(precision.gradients)

        fetch.defvjp(forward, backward)
        return fetch(w, accumulator)

    def add_product(self, name: str, x: Array) -> None:
        """Add the product of a term to the output of the block."""
        self.add_output(name, self.multiply(name, x, self.operand(name)))

    def add_output(self, name: str, output: Array) -> None:
        """Add an array with the layout of a term's product to the output of the block."""
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
    """Derive the collectives of an einsum; cached, because layers have the same einsums."""
    return derive(shard_einsum(einsum, weights, dict(rules)))


def _moves_of(moves: Iterable[Move], name: str) -> tuple[Move, ...]:
    """The moves of the array `name`."""
    return tuple(move for move in moves if move.before.name == name)


def _equation(program: Program) -> str:
    """Subscripts for `jnp.einsum` such as `abc,cd->abd`, from an einsum over named dims."""
    einsum = program.einsum
    letters = {dim: chr(ord("a") + i) for i, dim in enumerate(einsum.dims)}

    def subscripts(array: NamedArray) -> str:
        return "".join(letters[dim] for dim in array.names)

    return f"{subscripts(einsum.left)},{subscripts(einsum.right)}->{subscripts(einsum.output)}"
