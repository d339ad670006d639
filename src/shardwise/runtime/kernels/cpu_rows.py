"""Products of few activations with weights on CPUs, at the speed of memory.

A decode step reads every weight once for a few tokens. XLA's CPU compiler multiplies a 16-bit or
8-bit matrix by few rows in a slow way: it writes the matrix to memory in fp32 first. The remedies:

- Weights are stored by output ("rows"): out dims first, contracted dims last.
- With few tokens a product is written as a multiplication and a sum. With the compiler options
  below these are one loop, vectorized and parallel over outputs, that converts numbers as it reads
  them. It is vectorized over inputs for one token, and over tokens where the processor has no
  products of 16-bit numbers: these would convert the whole matrix first.
- Barriers around a product keep other operations out of that loop, which would be computed again
  for each output, and the product out of loops that are not parallel.

Letters of arrays: M tokens, O outputs, I contracted inputs.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from shardwise.runtime.compiler_options import accepts
from shardwise.runtime.kernels import cpu
from shardwise.runtime.weights.quantized import Scaled

Array = jax.Array

# Bytes of a weight -> tokens up to which a multiplication and sum is faster than a matmul, on AMD's
# Zen 4; a matmul of 8-bit weights writes them in 16 bits first.
FEW_TOKENS = {4: 4, 2: 4, 1: 8}
# The same over tokens, for narrow weights without products of 16-bit numbers: on Zen 3 it takes
# half the time of a matmul for 16 tokens, and as long for 32.
FEW_LANES = 16
LEFT_TOKENS = 64  # up to which a matmul is faster with the weights as its left operand
WIDE = jnp.float32
# Sums in any order, no matmul library for the sums, and barriers that last until code is emitted.
COMPILER_OPTIONS: dict[str, str | bool] = {
    "xla_cpu_enable_fast_math": True,
    "xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT",
    "xla_disable_hlo_passes": "tree_reduction_rewriter,cse_barrier_expander",
}


@functools.cache
def compiler_options() -> dict[str, Any]:
    """`COMPILER_OPTIONS`, or none where this version of XLA does not know them."""
    return COMPILER_OPTIONS if accepts(COMPILER_OPTIONS) else {}


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["values", "scale", "bits"], meta_fields=[]
)
@dataclasses.dataclass(frozen=True, slots=True)
class Rows:
    """A weight stored by output.

    Args:
        values: out dims, then contracted dims.
        scale: of quantized values, one per output; None without.
        bits: of an embedding in 16 bits, the same numbers as integers, for look-ups: XLA would
            convert the whole table to fp32 for each. None for other weights.
    """

    values: Array
    scale: Array | None = None
    bits: Array | None = None

    def __getitem__(self, index: Array) -> Array:
        """Rows of an embedding."""
        if self.bits is None:
            return self.values[index]
        wide = self.bits[index].astype(jnp.uint32) << 16
        return lax.bitcast_convert_type(wide, WIDE)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the values."""
        return self.values.shape


def rows(w: Array | Scaled, contracted: tuple[int, ...], *, is_embedding: bool = False) -> Rows:
    """Store a weight by output.

    Args:
        contracted: the dims that products contract, counted from the last (-1).
        is_embedding: whether it is looked up by row, too.
    """
    values = w.values if isinstance(w, Scaled) else w
    scale = w.scale if isinstance(w, Scaled) else None
    order = sorted(contracted)
    moved = jnp.moveaxis(values, order, range(-len(order), 0))
    bits = None
    if is_embedding and values.dtype == jnp.bfloat16:
        bits = lax.bitcast_convert_type(values, jnp.uint16)
    return Rows(moved, scale, bits)


def product(equation: str, x: Array, w: Rows) -> Array:
    """Product of activations in fp32 and a weight stored by output, in fp32.

    Args:
        equation: subscripts with the weight's dims in their usual order, such as `abc,cd->abd`.
    """
    inputs, output = equation.split("->")
    left, right = inputs.split(",")
    n_contracted = sum(letter not in output for letter in right)
    out_shape = w.values.shape[: len(right) - n_contracted]
    row_shape = x.shape[: len(left) - n_contracted]
    n_inputs = math.prod(w.values.shape[len(out_shape) :])
    x_MI = lax.optimization_barrier(x.reshape(-1, n_inputs).astype(WIDE))
    w_OI = w.values.reshape(-1, n_inputs)
    y_MO = _multiplication(x_MI.shape[0], w_OI.dtype)(x_MI, w_OI)
    if w.scale is not None:
        y_MO = y_MO * w.scale.reshape(-1)
    return y_MO.reshape(*row_shape, *out_shape)


def _multiplication(n_tokens: int, dtype: Any) -> Callable[[Array, Array], Array]:
    """The fastest product of this processor for so many tokens and weights of a dtype."""
    if n_tokens == 1:
        return _multiply_and_sum
    if _is_emulated(dtype):
        return _multiply_and_sum_lanes if n_tokens <= FEW_LANES else _matmul
    is_few = n_tokens <= FEW_TOKENS[jnp.dtype(dtype).itemsize]
    return _multiply_and_sum if is_few else _matmul


def _is_emulated(dtype: Any) -> bool:
    """Whether a matmul with weights of a dtype converts them first."""
    return jnp.dtype(dtype).itemsize < 4 and not cpu.multiplies_bf16()


def _multiply_and_sum_lanes(x_MI: Array, w_OI: Array) -> Array:
    """A loop over outputs that converts each weight once for all tokens."""
    x_IM = lax.optimization_barrier(x_MI.T)
    y_OM = (w_OI.astype(WIDE)[:, :, None] * x_IM[None]).sum(1)
    return lax.optimization_barrier(y_OM.T)


def _multiply_and_sum(x_MI: Array, w_OI: Array) -> Array:
    """A loop over outputs that converts weights as it reads them."""
    y_OM = (w_OI.astype(WIDE)[:, None] * x_MI[None]).sum(-1)
    return lax.optimization_barrier(y_OM.T)


def _matmul(x_MI: Array, w_OI: Array) -> Array:
    """Matmul in the dtype of the weights, 8-bit weights in 16 bits; sums are in fp32.

    The right operand is packed before the matmul, so that it is the smaller one; but a left one
    that is converted takes longer.
    """
    is_left = x_MI.shape[0] <= LEFT_TOKENS and not _is_emulated(w_OI.dtype)
    dtype = w_OI.dtype
    if dtype.itemsize == 1:
        dtype = jnp.dtype(jnp.bfloat16)
        w_OI = w_OI.astype(dtype)
    x_MI = lax.optimization_barrier(x_MI.astype(dtype))
    if is_left:
        return _product_of_rows(w_OI, x_MI).T
    return _product_of_rows(x_MI, w_OI)


def _product_of_rows(left: Array, right: Array) -> Array:
    """Products of all rows of two arrays, as a matmul of its own."""
    dims = (((1,), (1,)), ((), ()))
    product = lax.dot_general(left, right, dims, preferred_element_type=WIDE)
    return lax.optimization_barrier(product)
