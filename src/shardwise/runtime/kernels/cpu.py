"""Matmuls, attention and the loss, with their gradients, in a form that is fast on CPUs.

XLA's CPU compiler has four performance traps:

- A 16-bit matmul is fast where the processor has products of bf16 (AMX, AVX-512) and the result is
  fp32. Elsewhere it takes twice the time of an fp32 matmul, and a 16-bit result is emulated.
- If a matmul needs an operand transposed, the elementwise operations that produce the operand are
  fused into the transposing copy, and run element by element in its order.
- An array that several fusions read is computed again in each of them if that seems cheap. Examples
  are the residual (computed again from the first layer on) and the cosines of rotary positions.
- Optimizer moments are copied before an update overwrites them, unless the program makes sure that
  all readers of the old moments come first.

The remedies:

- Matmuls return fp32, which is cast afterwards. Without products of bf16 their operands are cast to
  fp32 first; those of attention unless there is a matrix unit (AMX): with AVX-512 XLA has no 16-bit
  product of several matrices.
- The matmul that contracts rows transposes the narrower operand.
- Attention and the loss have handwritten gradients, which transpose no array of scores or logits.
- Arrays with many readers are `materialized`.
- New moments wait for the new weights (`write_after`).

Letters: B sequences, T queries, S keys, M rows (B times T), I contracted columns, O output columns,
N query heads, K heads of keys and values, G = N / K query heads per KV head, H head width, V
vocabulary.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.xla_metadata import set_xla_metadata

from shardwise.estimate.training.measured_rates import n_query_blocks
from shardwise.models import Attention
from shardwise.runtime.layout.mesh import RoleMesh
from shardwise.runtime.weights.descriptions import weight_of_state

Array = jax.Array
Residuals = tuple[Array, ...]  # arrays saved for a backward pass
WIDE = jnp.float32
MIN_READS_TO_CAST = 64  # reads of each 16-bit number; an fp32 copy does not pay below
MASKED_SCORE = -1e30  # finite, with exponential 0


def saves_all_residuals(mesh: RoleMesh) -> bool:
    """Whether layers without recomputation run without `jax.checkpoint`, on a single CPU device.

    They then save every array that their gradient reads, not only those with a checkpoint name. On
    one device these include no gathered arrays, which would have to be dropped. Saving by name is
    slower: JAX adds a rounding operation to each named array, which copies it.
    """
    return mesh.platform == "cpu" and mesh.jax_mesh.size == 1


def recomputed(mesh: RoleMesh, function: Callable[..., Array]) -> Callable[..., Array]:
    """An elementwise function that the backward pass computes again, where it would save all of it.

    It is faster to compute than the arrays between its operations are to write and read.
    """
    return jax.checkpoint(function) if saves_all_residuals(mesh) else function


def materialized(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function into a call that XLA does not inline.

    Its result is then written to memory once, instead of computed again in every fusion that reads
    it. The same holds for its derivatives.
    """
    compiled = jax.jit(function)

    def run(*arrays: Any) -> Any:
        with set_xla_metadata(inlineable="false"):
            return compiled(*arrays)

    return run


_add = materialized(jnp.add)
_identity = materialized(lambda x: x)
_first_element = materialized(lambda x: x.ravel()[0])


def write_after(weights: Any, new: Any, old: Any) -> Any:
    """Return the `new` moments, made to depend on the new weights.

    XLA can then write them over the `old` moments, whose last reader is the new weight. Where the
    first element of a weight is NaN, its moments stay `old`.

    Args:
        new: the new moments; the tree path of each ends with the path of its weight.
        old: the moments before the update.
    """
    weights_by_path = dict(jax.tree_util.tree_leaves_with_path(weights))

    def select(path: tuple[Any, ...], new: Array, old: Array) -> Array:
        weight = weight_of_state(path, weights_by_path)
        if weight is None:
            return new
        element = _first_element(weight)
        return jnp.where(element == element, new, old)

    return jax.tree_util.tree_map_with_path(select, new, old)


@jax.custom_vjp
def add_residual(x: Array, y: Array) -> Array:
    """Add y to the residual x; the sum and its cotangent are each written to memory once."""
    total: Array = _add(x, y)
    return total


def _add_residual_backward(_: None, ct: Array) -> tuple[Array, Array]:
    ct = _identity(ct)
    return ct, ct


add_residual.defvjp(lambda x, y: (add_residual(x, y), None), _add_residual_backward)


def matmul_einsum(equation: str, x: Array, w: Array, *, wide: bool = False) -> Array:
    """Einsum of activations and weights; one such as `abc,cd->abd` is computed as a single matmul.

    So is one of a tied embedding, such as `abc,dc->abd`. Other einsums, such as those with a matrix
    per expert, are left to XLA.

    Args:
        equation: the subscripts, as `jnp.einsum` takes them.
        wide: whether a matmul returns fp32 instead of the dtype of x.
    """
    inputs, output = equation.split("->")
    x_dims, w_dims = inputs.split(",")
    n_contracted = sum(letter in w_dims for letter in x_dims)
    rows, contracted = x_dims[: len(x_dims) - n_contracted], x_dims[len(x_dims) - n_contracted :]
    columns = output.removeprefix(rows)
    dtype = WIDE if wide else x.dtype
    if rows + columns == output and w_dims == contracted + columns:
        return _matmul(x, w, n_contracted, dtype)
    is_tied = n_contracted == len(columns) == 1 and w_dims == columns + contracted
    if is_tied and rows + columns == output:
        return _matmul_tied(x, w, dtype)
    return jnp.einsum(equation, x, w)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _matmul(x: Array, w: Array, n_contracted: int, dtype: Any) -> Array:
    """Matmul in fp32, cast to `dtype`; its gradients transpose only the narrower operand.

    The backward pass reads x and w themselves: several products of x then save it once, and a scan
    over layers saves no second copy of their weights.

    Args:
        n_contracted: number of dims that are contracted: the last of x, the first of w.
    """
    x_MI, w_IO = _matrices(x, w, n_contracted)
    y_MO = _dot("mi,io->mo", x_MI, w_IO, n_reads=x_MI.shape[0]).astype(dtype)
    return y_MO.reshape(*x.shape[: x.ndim - n_contracted], *w.shape[n_contracted:])


def _matrices(x: Array, w: Array, n_contracted: int) -> tuple[Array, Array]:
    """(x_MI, w_IO): both operands with their contracted dims joined, and their other dims."""
    contracted = math.prod(w.shape[:n_contracted])
    return x.reshape(-1, contracted), w.reshape(contracted, -1)


def _matmul_forward(
    x: Array, w: Array, n_contracted: int, dtype: Any
) -> tuple[Array, tuple[Array, Array]]:
    return _matmul(x, w, n_contracted, dtype), (x, w)


def _matmul_backward(
    n_contracted: int, _: Any, residuals: tuple[Array, Array], dy: Array
) -> tuple[Array, Array]:
    x, w = residuals
    x_MI, w_IO = _matrices(x, w, n_contracted)
    dy_MO = dy.reshape(x_MI.shape[0], -1).astype(x.dtype)
    dx_MI = _dot("mo,io->mi", dy_MO, w_IO)
    if x_MI.shape[1] <= dy_MO.shape[1]:
        dw_IO = _contract_rows(x_MI, dy_MO)
    else:  # a product with a transposed result would be one that XLA does not have in 16 bits
        dw_IO = _identity(_contract_rows(dy_MO, x_MI)).T
    return dx_MI.astype(x.dtype).reshape(x.shape), dw_IO.astype(w.dtype).reshape(w.shape)


_matmul.defvjp(_matmul_forward, _matmul_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _matmul_tied(x: Array, w_OI: Array, dtype: Any) -> Array:
    """Matmul that contracts the last dims of x and of the weight, with sums in fp32."""
    x_MI = x.reshape(-1, x.shape[-1])
    y_MO = _dot("mi,oi->mo", x_MI, w_OI, n_reads=x_MI.shape[0]).astype(dtype)
    return y_MO.reshape(*x.shape[:-1], -1)


def _matmul_tied_forward(x: Array, w_OI: Array, dtype: Any) -> tuple[Array, tuple[Array, Array]]:
    return _matmul_tied(x, w_OI, dtype), (x, w_OI)


def _matmul_tied_backward(_: Any, residuals: tuple[Array, Array], dy: Array) -> tuple[Array, Array]:
    x, w_OI = residuals
    x_MI = x.reshape(-1, x.shape[-1])
    dy_MO = dy.reshape(-1, dy.shape[-1]).astype(x.dtype)
    dx_MI = _dot("mo,oi->mi", dy_MO, w_OI)
    dw_OI = _contract_rows(dy_MO, x_MI)
    return dx_MI.astype(x.dtype).reshape(x.shape), dw_OI.astype(w_OI.dtype)


_matmul_tied.defvjp(_matmul_tied_forward, _matmul_tied_backward)


def _contract_rows(left_MI: Array, right_MO: Array) -> Array:
    """Matmul of the transpose of `left_MI` with `right_MO`, which contracts the rows.

    XLA's fast kernel cannot read the left operand in this order. If the rows are split into two
    dims, XLA makes a transposed copy for the fast kernel; with one dim it uses a slower kernel.
    """
    if left_MI.shape[0] % 2:
        return _dot("mi,mo->io", left_MI, right_MO)
    # h are the two halves of the rows.
    left_hMI = left_MI.reshape(2, -1, left_MI.shape[1])
    right_hMO = right_MO.reshape(2, -1, right_MO.shape[1])
    return _dot("hmi,hmo->io", left_hMI, right_hMO)


def _dot(equation: str, lhs: Array, rhs: Array, n_reads: int = MIN_READS_TO_CAST) -> Array:
    """Matmul with a result in fp32; it reads each element of `rhs` about `n_reads` times."""
    casts = n_reads >= MIN_READS_TO_CAST and not multiplies_bf16()
    return _wide_einsum(equation, lhs, rhs, casts=casts)


def _dot_of_heads(equation: str, lhs: Array, rhs: Array) -> Array:
    """Einsum of attention with a result in fp32."""
    return _wide_einsum(equation, lhs, rhs, casts=not has_matrix_unit())


def _wide_einsum(equation: str, lhs: Array, rhs: Array, *, casts: bool) -> Array:
    """Einsum with a result in fp32, of operands that are cast to it first or are not."""
    if casts:
        lhs = lhs.astype(WIDE)
        rhs = rhs.astype(WIDE)
    return jnp.einsum(equation, lhs, rhs, preferred_element_type=WIDE)


@functools.cache
def has_matrix_unit() -> bool:
    """Whether this processor multiplies whole tiles of bf16 (Linux lists its AMX flags)."""
    return "amx_bf16" in _flags()


@functools.cache
def multiplies_bf16() -> bool:
    """Whether this processor has products of bf16, which are faster than those of fp32.

    Others convert a matrix to fp32 first.
    """
    return bool({"amx_bf16", "avx512_bf16"} & _flags())


def _flags() -> set[str]:
    """What Linux lists of this processor; nothing elsewhere."""
    cpu_info = Path("/proc/cpuinfo")
    return set(cpu_info.read_text().split()) if cpu_info.exists() else set()


def supports_attention(a: Attention, q_BTNH: Array, k_BSKH: Array) -> bool:
    """Whether `attend` computes this attention: causal, over whole sequences, with plain scores."""
    has_changed_scores = a.softcap or a.sinks or a.alibi or a.chunked or a.window is not None
    return a.causal and not has_changed_scores and q_BTNH.shape[1] == k_BSKH.shape[1]


def attend(q_BTNH: Array, k_BTKH: Array, v_BTKH: Array, scale: float) -> Array:
    """o_BTNH of causal attention; queries and keys are the same tokens in order."""
    B, T, N, H = q_BTNH.shape
    q_BNTH = (q_BTNH * scale).astype(q_BTNH.dtype).swapaxes(1, 2)
    q_BKGTH = q_BNTH.reshape(B, k_BTKH.shape[2], -1, T, H)
    o_BKGTH = _attend(q_BKGTH, k_BTKH.swapaxes(1, 2), v_BTKH.swapaxes(1, 2))
    return o_BKGTH.reshape(B, N, T, -1).swapaxes(1, 2)


@jax.custom_vjp
def _attend(q_BKGTH: Array, k_BKSH: Array, v_BKSH: Array) -> Array:
    """Causal attention by blocks of queries, each over the keys up to its last query.

    The backward pass recomputes the scores.
    """
    return _output_and_logsumexp(q_BKGTH, k_BKSH, v_BKSH)[0]


def _output_and_logsumexp(q_BKGTH: Array, k_BKSH: Array, v_BKSH: Array) -> tuple[Array, Array]:
    """(o_BKGTH, l_BKGT1) of causal attention."""
    outputs = []
    logsumexps = []
    for rows, keys in _query_blocks(q_BKGTH.shape[3]):
        s_BKGTS = _scores(q_BKGTH[..., rows, :], k_BKSH[:, :, keys])
        highest = s_BKGTS.max(axis=-1, keepdims=True)
        p_BKGTS = jnp.exp(s_BKGTS - highest).astype(v_BKSH.dtype)
        total = p_BKGTS.astype(WIDE).sum(axis=-1, keepdims=True)
        outputs.append(_dot_of_heads("bkgts,bksh->bkgth", p_BKGTS, v_BKSH[:, :, keys]) / total)
        logsumexps.append(highest + jnp.log(total))
    o_BKGTH = jnp.concatenate(outputs, axis=3).astype(q_BKGTH.dtype)
    return o_BKGTH, jnp.concatenate(logsumexps, axis=3)


def _attend_forward(q_BKGTH: Array, k_BKSH: Array, v_BKSH: Array) -> tuple[Array, Residuals]:
    o_BKGTH, l_BKGT1 = _output_and_logsumexp(q_BKGTH, k_BKSH, v_BKSH)
    return o_BKGTH, (q_BKGTH, k_BKSH, v_BKSH, o_BKGTH, l_BKGT1)


def _attend_backward(residuals: Residuals, do_BKGTH: Array) -> tuple[Array, Array, Array]:
    q_BKGTH, k_BKSH, v_BKSH, o_BKGTH, l_BKGT1 = residuals
    do_o_BKGT1 = (do_BKGTH.astype(WIDE) * o_BKGTH.astype(WIDE)).sum(axis=-1, keepdims=True)
    dq_blocks = []
    dk_BKHS = jnp.zeros((*k_BKSH.shape[:2], k_BKSH.shape[3], k_BKSH.shape[2]), WIDE)
    dv_BKHS = jnp.zeros((*v_BKSH.shape[:2], v_BKSH.shape[3], v_BKSH.shape[2]), WIDE)
    for rows, keys in _query_blocks(q_BKGTH.shape[3]):
        block = (..., rows, slice(None))
        p_BKGTS = jnp.exp(_scores(q_BKGTH[block], k_BKSH[:, :, keys]) - l_BKGT1[block])
        dp_BKGTS = _dot_of_heads("bkgth,bksh->bkgts", do_BKGTH[block], v_BKSH[:, :, keys])
        ds_BKGTS = (p_BKGTS * (dp_BKGTS - do_o_BKGT1[block])).astype(q_BKGTH.dtype)
        dq_blocks.append(_dot_of_heads("bkgts,bksh->bkgth", ds_BKGTS, k_BKSH[:, :, keys]))
        dk_block = _dot_of_heads("bkgth,bkgts->bkhs", q_BKGTH[block], ds_BKGTS)
        dk_BKHS = dk_BKHS.at[..., keys].add(dk_block)
        p_BKGTS = p_BKGTS.astype(q_BKGTH.dtype)
        dv_block = _dot_of_heads("bkgth,bkgts->bkhs", do_BKGTH[block], p_BKGTS)
        dv_BKHS = dv_BKHS.at[..., keys].add(dv_block)
    dq_BKGTH = jnp.concatenate(dq_blocks, axis=3).astype(q_BKGTH.dtype)
    dk_BKSH = dk_BKHS.swapaxes(2, 3).astype(k_BKSH.dtype)
    dv_BKSH = dv_BKHS.swapaxes(2, 3).astype(v_BKSH.dtype)
    return dq_BKGTH, dk_BKSH, dv_BKSH


_attend.defvjp(_attend_forward, _attend_backward)


def _query_blocks(n_tokens: int) -> list[tuple[slice, slice]]:
    """For each block of queries (slice of its tokens, slice of the keys up to its last token)."""
    size = n_tokens // n_query_blocks(n_tokens)
    return [(slice(stop - size, stop), slice(stop)) for stop in range(size, n_tokens + 1, size)]


def _scores(q_BKGTH: Array, k_BKSH: Array) -> Array:
    """Causal scores s_BKGTS of the last T of S tokens over all S."""
    s_BKGTS = _dot_of_heads("bkgth,bksh->bkgts", q_BKGTH, k_BKSH)
    T, S = s_BKGTS.shape[3:]

    def mask_TS() -> Array:
        rows = jnp.arange(S - T, S)
        columns = jnp.arange(S)
        return jnp.where(rows[:, None] >= columns, 0.0, MASKED_SCORE)

    # The mask is materialized, because comparisons in the fusion of the exponentials would take as
    # long as the exponentials.
    return s_BKGTS + materialized(mask_TS)()


@jax.custom_vjp
def cross_entropy(logits_BTV: Array, targets_BT: Array) -> Array:
    """Sum over all tokens of the loss, from fp32 logits."""
    return _loss_and_logsumexp(logits_BTV, targets_BT)[0]


def _loss_and_logsumexp(logits_BTV: Array, targets_BT: Array) -> tuple[Array, Array]:
    """(summed loss, logsumexp l_BT of the logits)."""
    highest = logits_BTV.max(axis=-1)
    l_BT = highest + jnp.log(jnp.exp(logits_BTV - highest[..., None]).sum(axis=-1))
    target_BT = jnp.take_along_axis(logits_BTV, targets_BT[..., None], axis=-1)[..., 0]
    return (l_BT - target_BT).sum(), l_BT


def _cross_entropy_forward(logits_BTV: Array, targets_BT: Array) -> tuple[Array, Residuals]:
    loss, l_BT = _loss_and_logsumexp(logits_BTV, targets_BT)
    return loss, (logits_BTV, targets_BT, l_BT)


def _cross_entropy_backward(residuals: Residuals, ct: Array) -> tuple[Array, Any]:
    logits_BTV, targets_BT, l_BT = residuals
    columns_V = jnp.arange(logits_BTV.shape[-1], dtype=WIDE)  # fp32, like the operations around it
    is_target = columns_V == targets_BT[..., None].astype(WIDE)
    return (jnp.exp(logits_BTV - l_BT[..., None]) - is_target) * ct, None


cross_entropy.defvjp(_cross_entropy_forward, _cross_entropy_backward)
