"""What a step does in another way on a CPU: products, attention and the loss, with their gradients.

XLA's CPU compiler has four traps. A product of 16-bit numbers is fast where the processor has a
unit for it (AMX) and the result is fp32; without the unit it takes twice the time of fp32 numbers,
and with a result of 16 bits it is an emulation. Where a product needs one side transposed, what
made that side is computed again, number by number in the order of the copy. What several kernels
read is computed in each of them where it seems cheap: a residual, from the first layer on, and the
cosines of positions. And moments are copied before an update writes over them, where nothing says
that all that reads the old ones comes first.

So products give fp32 and are cast, as is what they read where there is no unit; the one over rows
transposes the narrower side; attention and the loss have gradients that are written down, in which
no array of scores or logits is transposed; what many kernels read is computed `once`; and new
moments wait for the weights.

Letters: B sequences, T S tokens, M rows of both, I summed and O kept columns, N heads, of which G
have the same of K keys and values, H head width, V vocabulary.
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

from shardwise.models import Attention
from shardwise.runtime.layout.mesh import RoleMesh
from shardwise.runtime.weights.descriptions import weight_of_state

Array = jax.Array
WIDE = jnp.float32
PARTS, LEAST = 4, 512  # blocks of the queries in causal attention, from this many tokens on
MOST, MUCH = 16, 1 << 19  # layers of a scan that is written out, and numbers of their residual
OFTEN = 64  # how often a number of 16 bits is read where it is worth a copy of 32
HIDDEN = -1e30  # a score that counts for nothing, and is a number yet


def unroll(platform: str, repeats: int, size: int) -> int:
    """How many layers of a scan are written out one after the other.

    In a loop, what layers keep is copied into arrays of all layers, in 16 bits by way of fp32. All
    of a few layers with much work are written out on a CPU: a compile takes longer by as much.

    Args:
        repeats: of the scan.
        size: numbers of the residual on a device.
    """
    return repeats if platform == "cpu" and repeats <= MOST and size >= MUCH else 1


def keeps(on: RoleMesh) -> bool:
    """Whether layers of which remat drops nothing keep all that their gradients read, and not only
    what remat has names for: on one CPU device, where nothing is gathered that should go again.

    Keeping by name copies each array, as JAX rounds what it keeps (to the precision it has).
    """
    return on.platform == "cpu" and on.mesh.size == 1


def once(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function as a call that is not inlined: what it gives lies in memory, and no kernel
    that reads it computes it again. The same holds for its derivatives."""
    compiled = jax.jit(function)

    def run(*arrays: Any) -> Any:
        with set_xla_metadata(inlineable="false"):
            return compiled(*arrays)

    return run


_sum, _same = once(jnp.add), once(lambda x: x)
_first = once(lambda x: x.ravel()[0])


def written_after(weights: Any, new: Any, old: Any) -> Any:
    """`new` moments, which take the memory of `old` ones as soon as their weights are computed.

    Those of a weight end in its path. They are made to depend on a number of the new weight; where
    it is none, `old` ones stay.
    """
    known = dict(jax.tree_util.tree_leaves_with_path(weights))

    def one(path: tuple[Any, ...], new: Array, old: Array) -> Array:
        weight = weight_of_state(path, known)
        if weight is None:
            return new
        first = _first(weight)
        return jnp.where(first == first, new, old)

    return jax.tree_util.tree_map_with_path(one, new, old)


@jax.custom_vjp
def added(x: Array, y: Array) -> Array:
    """x + y, of which both the sum and what flows back to it are computed once."""
    total: Array = _sum(x, y)
    return total


def _added_backward(_: None, d: Array) -> tuple[Array, Array]:
    d = _same(d)
    return d, d


added.defvjp(lambda x, y: (added(x, y), None), _added_backward)


def product(letters: str, x: Array, w: Array, *, wide: bool = False) -> Array:
    """An einsum of activations and weights, `abc,cd->abd`, that is a product of two matrices.

    Others (those of experts, which have matrices of their own) are left to XLA.

    Args:
        letters: as `jnp.einsum` takes them.
        wide: the result stays in fp32.
    """
    inputs, output = letters.split("->")
    left, right = inputs.split(",")
    n = len(left) - sum(letter in right for letter in left)  # dims of rows
    if left[:n] + right[len(left) - n :] != output or left[n:] != right[: len(left) - n]:
        return jnp.einsum(letters, x, w)
    rows, inner = x.shape[:n], math.prod(x.shape[n:])
    y_MO = _matmul(x.reshape(-1, inner), w.reshape(inner, -1), WIDE if wide else x.dtype)
    return y_MO.reshape(*rows, *w.shape[len(left) - n :])


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _matmul(x_MI: Array, w_IO: Array, dtype: Any) -> Array:
    return _dot("mi,io->mo", x_MI, w_IO, times=x_MI.shape[0]).astype(dtype)


def _forward(x_MI: Array, w_IO: Array, dtype: Any) -> tuple[Array, tuple[Array, Array]]:
    return _matmul(x_MI, w_IO, dtype), (x_MI, w_IO)


def _backward(_: Any, kept: tuple[Array, Array], dy_MO: Array) -> tuple[Array, Array]:
    x_MI, w_IO = kept
    dy_MO = dy_MO.astype(x_MI.dtype)
    dx_MI = _dot("mo,io->mi", dy_MO, w_IO).astype(x_MI.dtype)
    if x_MI.shape[1] <= dy_MO.shape[1]:
        return dx_MI, _over_rows(x_MI, dy_MO).astype(w_IO.dtype)
    return dx_MI, _over_rows(dy_MO, x_MI).astype(w_IO.dtype).T


def _over_rows(a_MI: Array, b_MO: Array) -> Array:
    """a^T b.

    XLA's fast kernel does not take `a` as it lies: with two dims of rows it gets a transposed copy,
    with one a slower kernel is taken.
    """
    if a_MI.shape[0] % 2:
        return _dot("mi,mo->io", a_MI, b_MO)
    a, b = (x.reshape(2, -1, x.shape[1]) for x in (a_MI, b_MO))
    return _dot("hmi,hmo->io", a, b)


_matmul.defvjp(_forward, _backward)


def _dot(letters: str, a: Array, b: Array, times: int = OFTEN) -> Array:
    """An einsum in fp32, of which `b` is read so many times."""
    if times >= OFTEN and not has_matrix_unit():
        a, b = a.astype(WIDE), b.astype(WIDE)
    return jnp.einsum(letters, a, b, preferred_element_type=WIDE)


@functools.cache
def has_matrix_unit() -> bool:
    """Whether this processor multiplies bf16 faster than fp32 (Linux says so of its AMX)."""
    about = Path("/proc/cpuinfo")
    return about.exists() and "amx_bf16" in about.read_text()


def attends(a: Attention, q_BTNH: Array, k_BSKH: Array) -> bool:
    """Whether `attend` does it: causal, of whole sequences, nothing done to scores."""
    changed = a.softcap or a.sinks or a.alibi or a.chunked or a.window is not None
    return a.causal and not changed and q_BTNH.shape[1] == k_BSKH.shape[1]


def attend(q_BTNH: Array, k_BTKH: Array, v_BTKH: Array, scale: float) -> Array:
    """Causal attention among the same tokens in order; N is a multiple of K."""
    B, T, N, H = q_BTNH.shape
    q_BNTH = (q_BTNH * scale).astype(q_BTNH.dtype).swapaxes(1, 2)
    q_BKGTH = q_BNTH.reshape(B, k_BTKH.shape[2], -1, T, H)
    o_BKGTH = _attend(q_BKGTH, k_BTKH.swapaxes(1, 2), v_BTKH.swapaxes(1, 2))
    return o_BKGTH.reshape(B, N, T, -1).swapaxes(1, 2)


@jax.custom_vjp
def _attend(q_BKGTH: Array, k_BKSH: Array, v_BKSH: Array) -> Array:
    """Blocks of queries look at no key behind them. The backward pass computes scores again."""
    return _attended(q_BKGTH, k_BKSH, v_BKSH)[0]


def _attended(q_BKGTH: Array, k_BKSH: Array, v_BKSH: Array) -> tuple[Array, Array]:
    """What is attended, and the logarithm of the sum that its softmax divides by."""
    found, sums = [], []
    for rows, keys in _blocks(q_BKGTH.shape[3]):
        s_BKGTS = _scores(q_BKGTH[..., rows, :], k_BKSH[:, :, keys])
        highest = s_BKGTS.max(axis=-1, keepdims=True)
        p_BKGTS = jnp.exp(s_BKGTS - highest).astype(v_BKSH.dtype)
        total = p_BKGTS.astype(WIDE).sum(axis=-1, keepdims=True)
        found.append(_dot("bkgts,bksh->bkgth", p_BKGTS, v_BKSH[:, :, keys]) / total)
        sums.append(highest + jnp.log(total))
    o_BKGTH = jnp.concatenate(found, axis=3).astype(q_BKGTH.dtype)
    return o_BKGTH, jnp.concatenate(sums, axis=3)


def _attend_forward(q: Array, k: Array, v: Array) -> tuple[Array, tuple[Array, ...]]:
    o, l = _attended(q, k, v)
    return o, (q, k, v, o, l)


def _attend_backward(kept: tuple[Array, ...], do: Array) -> tuple[Array, Array, Array]:
    q, k, v, o, l = kept  # q o do [B,K,G,T,H], k v [B,K,S,H], l [B,K,G,T,1]
    own = (do.astype(WIDE) * o.astype(WIDE)).sum(axis=-1, keepdims=True)
    dqs = []
    dk_BKHS, dv_BKHS = (jnp.zeros((*x.shape[:2], x.shape[3], x.shape[2]), WIDE) for x in (k, v))
    for rows, keys in _blocks(q.shape[3]):
        at = (..., rows, slice(None))
        p_BKGTS = jnp.exp(_scores(q[at], k[:, :, keys]) - l[at])
        dp_BKGTS = _dot("bkgth,bksh->bkgts", do[at], v[:, :, keys])
        ds_BKGTS = (p_BKGTS * (dp_BKGTS - own[at])).astype(q.dtype)
        dqs.append(_dot("bkgts,bksh->bkgth", ds_BKGTS, k[:, :, keys]))
        dk_BKHS = dk_BKHS.at[..., keys].add(_dot("bkgth,bkgts->bkhs", q[at], ds_BKGTS))
        p_BKGTS = p_BKGTS.astype(q.dtype)
        dv_BKHS = dv_BKHS.at[..., keys].add(_dot("bkgth,bkgts->bkhs", do[at], p_BKGTS))
    dq = jnp.concatenate(dqs, axis=3).astype(q.dtype)
    dk, dv = (x.swapaxes(2, 3).astype(k.dtype) for x in (dk_BKHS, dv_BKHS))
    return dq, dk, dv


_attend.defvjp(_attend_forward, _attend_backward)


def _blocks(n_tokens: int) -> list[tuple[slice, slice]]:
    """(rows of queries, keys up to the last of them)."""
    size = n_tokens // PARTS if n_tokens >= LEAST and n_tokens % PARTS == 0 else n_tokens
    ends = range(size, n_tokens + 1, size)
    return [(slice(end - size, end), slice(end)) for end in ends]


def _scores(q_BKGTH: Array, k_BKSH: Array) -> Array:
    """Those of the last T of S tokens, hidden where the key comes later."""
    s_BKGTS = _dot("bkgth,bksh->bkgts", q_BKGTH, k_BKSH)
    T, S = s_BKGTS.shape[3:]

    def hidden_TS() -> Array:
        rows, columns = jnp.arange(S - T, S), jnp.arange(S)
        return jnp.where(rows[:, None] >= columns, 0.0, HIDDEN)

    # Comparing in the kernel of the exponentials would take as long as they do.
    return s_BKGTS + once(hidden_TS)()


@jax.custom_vjp
def cross_entropy(logits_BTV: Array, targets_BT: Array) -> Array:
    """Sum of the losses of all tokens, of fp32 logits."""
    return _losses(logits_BTV, targets_BT)[0]


def _losses(logits_BTV: Array, targets_BT: Array) -> tuple[Array, Array]:
    highest = logits_BTV.max(axis=-1)
    l_BT = highest + jnp.log(jnp.exp(logits_BTV - highest[..., None]).sum(axis=-1))
    own_BT = jnp.take_along_axis(logits_BTV, targets_BT[..., None], axis=-1)[..., 0]
    return (l_BT - own_BT).sum(), l_BT


def _losses_forward(logits_BTV: Array, targets_BT: Array) -> tuple[Array, tuple[Array, ...]]:
    loss, l_BT = _losses(logits_BTV, targets_BT)
    return loss, (logits_BTV, targets_BT, l_BT)


def _losses_backward(kept: tuple[Array, ...], d: Array) -> tuple[Array, Any]:
    logits_BTV, targets_BT, l_BT = kept
    columns_V = jnp.arange(logits_BTV.shape[-1], dtype=WIDE)  # as fast as numbers beside them
    hit = columns_V == targets_BT[..., None].astype(WIDE)
    return (jnp.exp(logits_BTV - l_BT[..., None]) - hit) * d, None


cross_entropy.defvjp(_losses_forward, _losses_backward)
