"""One Transformer layer in plain JAX, laid out by the rules table as the planner reads it.

x_BTD is the residual stream, q_BTNH k_BSKH v_BSKH the heads, s_BKGTS the scores (G = N / K query
heads share the keys of one), h_BTF the MLP. Norms have no scale, so every weight is in a matmul.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shardwise.models import ModelConfig
from shardwise.models.weights import layer_weights
from shardwise.strategy.rules import TRAIN, layout
from tests.oracle import xla

Mesh = Mapping[str, int]
Put = Callable[[str, str, Any], Any]
Arrays = dict[str, Any]


def sharding(mesh: Mesh, kind: str, dims: Sequence[str]) -> Any:
    """NamedSharding of an array from the rows of the table."""
    axes = layout(TRAIN, kind, tuple(dims))
    return xla.sharding(mesh, [axes.get(d, ()) for d in dims])


def weights(config: ModelConfig) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Name -> (dims, shape) of the weights in matmuls."""
    found = layer_weights(config, config.main_layer)
    return {w.name: ("".join(w.dims), w.shape) for w in found if w.is_matmul}


def random(config: ModelConfig, batch: int, seq: int) -> tuple[Arrays, Any, Any]:
    """(weights, input of the layer, gradient of its output) on one device."""
    jax = xla.load()
    shapes = {name: shape for name, (_, shape) in weights(config).items()}
    keys = jax.random.split(jax.random.key(0), len(shapes) + 2)
    scale = config.d_model**-0.5
    made = {
        name: jax.random.normal(key, shape) * scale
        for key, (name, shape) in zip(keys, shapes.items(), strict=False)
    }
    x, dy = (jax.random.normal(key, (batch, seq, config.d_model)) for key in keys[-2:])
    return made, x, dy


def gradients(config: ModelConfig, mesh: Mesh | None, *, remat: bool = False) -> Callable[..., Any]:
    """`(w, x, dy) -> (loss, (dw, dx))` under jit; without a mesh on one device."""
    jax = xla.load()

    def put(kind: str, dims: str, array: Any) -> Any:
        if mesh is None:
            return array
        return jax.lax.with_sharding_constraint(array, sharding(mesh, kind, dims))

    def plain(w: Arrays, x: Any) -> Any:
        return layer(w, x, put)

    run = jax.checkpoint(plain) if remat else plain

    def loss(w: Arrays, x: Any, dy: Any) -> Any:
        return (run(w, x) * dy).sum()

    both = jax.value_and_grad(loss, argnums=(0, 1))
    if mesh is None:
        return jax.jit(both)
    laid = {name: sharding(mesh, "weights", dims) for name, (dims, _) in weights(config).items()}
    residual = sharding(mesh, "residual", "BTD")
    none = xla.sharding(mesh, ())
    return jax.jit(
        both,
        in_shardings=(laid, residual, residual),
        out_shardings=(none, (laid, residual)),
    )


def layer(w: Arrays, x_BTD: Any, put: Put) -> Any:
    """Attention and a gated MLP, each with a norm before and the residual around it."""
    jax = xla.load()
    x_BTD = put("residual", "BTD", x_BTD)
    x_BTD = x_BTD + attention(w, _gather(_norm(x_BTD), put), put)
    n_BTD = _gather(_norm(x_BTD), put)
    gate = put("activations", "BTF", jax.numpy.einsum("BTD,DF->BTF", n_BTD, w["w_gate"]))
    up = put("activations", "BTF", jax.numpy.einsum("BTD,DF->BTF", n_BTD, w["w_up"]))
    h_BTF = put("activations", "BTF", jax.nn.silu(gate) * up)
    return x_BTD + _scatter(jax.numpy.einsum("BTF,FD->BTD", h_BTF, w["w_down"]), put)


def attention(w: Arrays, n_BTD: Any, put: Put) -> Any:
    """Causal attention that computes the whole square of scores and masks the half of it."""
    jax = xla.load()
    einsum = jax.numpy.einsum
    q_BTNH = put("activations", "BTNH", einsum("BTD,DNH->BTNH", n_BTD, w["wq"]))
    k_BSKH = put("activations", "BSKH", einsum("BTD,DKH->BTKH", n_BTD, w["wk"]))
    v_BSKH = put("activations", "BSKH", einsum("BTD,DKH->BTKH", n_BTD, w["wv"]))
    B, T, N, H = q_BTNH.shape
    K = k_BSKH.shape[2]
    q_BTKGH = q_BTNH.reshape(B, T, K, N // K, H)
    s_BKGTS = einsum("BTKGH,BSKH->BKGTS", q_BTKGH, k_BSKH) * H**-0.5
    seen = jax.numpy.tril(jax.numpy.ones((T, T), bool))
    p_BKGTS = jax.nn.softmax(jax.numpy.where(seen, s_BKGTS, -1e9), axis=-1)
    o_BTNH = einsum("BKGTS,BSKH->BTKGH", p_BKGTS, v_BSKH).reshape(B, T, N, H)
    o_BTNH = put("activations", "BTNH", o_BTNH)
    return _scatter(einsum("BTNH,NHD->BTD", o_BTNH, w["wo"]), put)


def _norm(x_BTD: Any) -> Any:
    jax = xla.load()
    return x_BTD * jax.lax.rsqrt((x_BTD * x_BTD).mean(-1, keepdims=True) + 1e-6)


def _gather(x_BTD: Any, put: Put) -> Any:
    """From the residual stream into a block; its gradient goes the other way."""
    return _two_ways(x_BTD, put, "activations", "residual")


def _scatter(y_BTD: Any, put: Put) -> Any:
    """From a block into the residual stream; its gradient goes the other way."""
    return _two_ways(y_BTD, put, "residual", "activations")


def _two_ways(array: Any, put: Put, forward: str, backward: str) -> Any:
    """Another layout for an array than for its gradient, as the algebra of the einsums has it.

    With a constraint on the residual side alone, XLA gathers activations where it should scatter
    the gradients of weights, on a mesh of fsdp, context and tensor.
    """

    def there(x: Any) -> Any:
        return put(forward, "BTD", x)

    def back(_: None, dx: Any) -> tuple[Any]:
        return (put(backward, "BTD", dx),)

    laid = xla.load().custom_vjp(there)
    laid.defvjp(lambda x: (there(x), None), back)
    return laid(array)
