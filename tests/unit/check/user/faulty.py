"""Small programs with planted faults, and the same programs without them.

Dims: L layers, B sequences, T length, D model, F feed-forward, V words. The mesh is 4 x 4 chips.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

L, B, T, D, F, V = 4, 64, 1024, 2048, 8192, 32768
MESH = AbstractMesh((4, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
BF16 = jnp.bfloat16
Program = tuple[Callable[..., Any], tuple[Any, ...]]


def sharded(*axes: str | None) -> NamedSharding:
    return NamedSharding(MESH, PartitionSpec(*axes))


def array(dims: tuple[int, ...], *axes: str | None, dtype: Any = BF16) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(dims, dtype, sharding=sharded(*axes))


def update(*, donated: bool = True) -> Program:
    """An optimizer's update of weights and moments, 768 MiB on a chip."""

    def step(w: jax.Array, mu: jax.Array, gradient: jax.Array) -> tuple[jax.Array, jax.Array]:
        mu = 0.9 * mu + gradient.astype(jnp.float32)
        return (w - 1e-3 * mu).astype(BF16), mu

    dims = (8 * L, 2 * D, 2 * F)
    on = (None, "data", "model")
    args = (array(dims, *on), array(dims, *on, dtype=jnp.float32), array(dims, *on))
    return jax.jit(step, donate_argnums=(0, 1) if donated else ()), args


def on_mesh(x: jax.Array, *axes: str | None) -> jax.Array:
    """A helper that constrains a sharding, called from several lines."""
    return lax.with_sharding_constraint(x, sharded(*axes))


def mlp(
    *,
    fp32: bool = False,
    reshards: bool = False,
    replicated: bool = False,
    hidden_is_whole: bool = False,
) -> Program:
    """A scan over feed-forward layers, whose weights and hidden dim are split over `model`."""

    def layer(x_BTD: jax.Array, weights: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        up_DF, down_FD = weights
        with jax.named_scope("mlp"):
            if fp32:
                h_BTF = x_BTD.astype(jnp.float32) @ up_DF.astype(jnp.float32)  # the fp32 product
            else:
                h_BTF = x_BTD @ up_DF  # the hidden product
            if hidden_is_whole:
                h_BTF = on_mesh(h_BTF, "data", None, None)  # the wrong constraint
            h_BTF = jax.nn.gelu(h_BTF).astype(BF16)
            if not hidden_is_whole:
                h_BTF = on_mesh(h_BTF, "data", None, "model")
            if reshards:
                h_BTF = 2 * lax.with_sharding_constraint(h_BTF, sharded("data", "model"))  # reshard
                h_BTF = lax.with_sharding_constraint(h_BTF, sharded("data", None, "model"))
            y_BTD = on_mesh(h_BTF @ down_FD, "data")
            return x_BTD + y_BTD, None

    def forward(up_LDF: jax.Array, down_LFD: jax.Array, x_BTD: jax.Array) -> jax.Array:
        return lax.scan(layer, x_BTD, (up_LDF, down_LFD))[0]

    axis = None if replicated else "model"
    up_LDF = array((L, D, F), None, None, axis)
    down_LFD = array((L, F, D), None, axis, None)
    return jax.jit(forward), (up_LDF, down_LFD, array((16, 256, D), "data"))


def logits(*, whole: bool = False) -> Program:
    """The loss of a batch, whose logits are split over both axes."""

    def loss(w_DV: jax.Array, x_BTD: jax.Array, labels_BT: jax.Array) -> jax.Array:
        with jax.named_scope("unembed"):
            on = sharded() if whole else sharded("data", None, "model")
            logits_BTV = lax.with_sharding_constraint(x_BTD @ w_DV, on)  # the logits
        with jax.named_scope("loss"):
            logits_BTV = logits_BTV.astype(jnp.float32)
            words = lax.broadcasted_iota(jnp.int32, logits_BTV.shape, 2)
            chosen = jnp.where(words == labels_BT[..., None], logits_BTV, 0)
            return jnp.mean(jax.nn.logsumexp(logits_BTV, -1) - jnp.sum(chosen, -1))

    w_DV = array((D, V), None, "model")
    labels_BT = array((B, T), "data", dtype=jnp.int32)
    return jax.jit(loss), (w_DV, array((B, T, D), "data"), labels_BT)


def model(
    *, batch_is_dropped: bool = False, batch_is_whole: bool = False, trains: bool = False
) -> Program:
    """An embedding and layers, whose batch is split over `data`, as the weights are.

    A batch that is whole is so from the beginning: no axis splits the tokens or what follows. It
    has few tokens, because the compiler takes long over many, whether the program trains or not.
    """

    def layer(x_BTD: jax.Array, weights: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        up_DF, down_FD = weights
        with jax.named_scope("mlp"):
            x_BTD = x_BTD + jax.nn.gelu(x_BTD @ up_DF) @ down_FD
            if not (batch_is_dropped or batch_is_whole):
                x_BTD = lax.with_sharding_constraint(x_BTD, sharded("data"))
            return x_BTD, None

    def forward(
        table_VD: jax.Array, up_LDF: jax.Array, down_LFD: jax.Array, tokens_BT: jax.Array
    ) -> jax.Array:
        with jax.named_scope("embed"):
            x_BTD = table_VD[tokens_BT]  # the lookup
            on = sharded() if batch_is_dropped or batch_is_whole else sharded("data")
            x_BTD = lax.with_sharding_constraint(x_BTD, on)
        x_BTD, _ = lax.scan(layer, x_BTD, (up_LDF, down_LFD))
        return jnp.mean(x_BTD.astype(jnp.float32))

    table_VD = array((V, D), "model")
    up_LDF = array((L, D, F), None, "data", "model")
    down_LFD = array((L, F, D), None, "model", "data")
    n_tokens = (16, 8) if batch_is_whole else (B, T)
    tokens_BT = array(n_tokens, None if batch_is_whole else "data", dtype=jnp.int32)
    program = jax.grad(forward, argnums=(0, 1, 2)) if trains else forward
    return jax.jit(program), (table_VD, up_LDF, down_LFD, tokens_BT)


def decode(*, carried: bool = True, donated: bool = True) -> Program:
    """A token through layers that update their cache, 512 MiB on a chip: in place, or scanned."""
    S, N, H = 4096, 16, 128
    Cache = tuple[jax.Array, jax.Array]

    def attend(x_BD: jax.Array, w_DD: jax.Array, cache: Cache) -> jax.Array:
        k_BSNH, v_BSNH = cache
        q_BNH = (x_BD @ w_DD).reshape(-1, N, H)
        scores_BNS = jnp.einsum("BNH,BSNH->BNS", q_BNH, k_BSNH, preferred_element_type=jnp.float32)
        weights_BNS = jax.nn.softmax(scores_BNS).astype(BF16)
        return x_BD + jnp.einsum("BNS,BSNH->BNH", weights_BNS, v_BSNH).reshape(x_BD.shape)

    def token(x_BD: jax.Array) -> jax.Array:
        """Keys or values of one token, [B, 1, N, H]."""
        return x_BD.reshape(-1, 1, N, H)[:, :, :1] * jnp.ones((1, 1, N, 1), BF16)

    def with_token(cache_BSNH: jax.Array, x_BD: jax.Array, position: jax.Array) -> jax.Array:
        return lax.dynamic_update_slice_in_dim(cache_BSNH, token(x_BD), position, 1)

    def scanned(
        w_LDD: jax.Array, cache: Cache, x_BD: jax.Array, position: jax.Array
    ) -> tuple[jax.Array, Cache]:
        def layer(x_BD: jax.Array, of_layer: tuple[jax.Array, Cache]) -> tuple[jax.Array, Cache]:
            w_DD, (k_BSNH, v_BSNH) = of_layer
            new = with_token(k_BSNH, x_BD, position), with_token(v_BSNH, x_BD, position)
            return attend(x_BD, w_DD, new), new

        return lax.scan(layer, x_BD, (w_LDD, cache))

    def in_place(
        w_LDD: jax.Array, cache: Cache, x_BD: jax.Array, position: jax.Array
    ) -> tuple[jax.Array, Cache]:
        def layer(number: int, carry: tuple[jax.Array, Cache]) -> tuple[jax.Array, Cache]:
            x_BD, (k_LBSNH, v_LBSNH) = carry
            start = (number, 0, position, 0, 0)
            k_LBSNH = lax.dynamic_update_slice(k_LBSNH, token(x_BD)[None], start)
            v_LBSNH = lax.dynamic_update_slice(v_LBSNH, token(x_BD)[None], start)
            x_BD = attend(x_BD, w_LDD[number], (k_LBSNH[number], v_LBSNH[number]))
            return x_BD, (k_LBSNH, v_LBSNH)

        return lax.fori_loop(0, 2 * L, layer, (x_BD, cache))

    cache_LBSNH = array((2 * L, 32, S, N, H), None, "data", None, "model")
    w_LDD = array((2 * L, N * H, N * H), None, None, "model")
    position = jax.ShapeDtypeStruct((), jnp.int32, sharding=sharded())
    args = (w_LDD, (cache_LBSNH, cache_LBSNH), array((32, N * H), "data"), position)
    step = in_place if carried else scanned
    return jax.jit(step, donate_argnums=1 if donated else ()), args
