"""Small programs for the tests of compiling, built by name in the compiling process."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from shardwise.runtime.program import Program


def matmul(devices: np.ndarray[Any, Any], *, m: int = 256, k: int = 256, n: int = 256) -> Program:
    """In[M_data, K] . W[K, N] -> a sum, over all devices on one axis."""
    mesh = Mesh(devices.reshape(-1), ("data",))

    def fn(in_MK: jax.Array, w_KN: jax.Array) -> jax.Array:
        with jax.named_scope("mlp.up"):
            return jnp.sum(in_MK @ w_KN)

    args = (
        jax.ShapeDtypeStruct((m, k), jnp.bfloat16, sharding=_over(mesh, "data")),
        jax.ShapeDtypeStruct((k, n), jnp.bfloat16, sharding=_over(mesh)),
    )
    return Program(name="matmul", fn=fn, args=args, mesh=mesh)


def _over(mesh: Mesh, *axes: str) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec(*axes))


def scan(devices: np.ndarray[Any, Any], *, layers: int, d: int = 8192, rows: int = 4096) -> Program:
    """The gradient of a stack of layers, whose activations are kept: memory grows with `layers`."""
    mesh = Mesh(devices.reshape(-1), ("data",))

    def loss(w_LDD: jax.Array, x_BD: jax.Array) -> jax.Array:
        def layer(x_BD: jax.Array, w_DD: jax.Array) -> tuple[jax.Array, None]:
            with jax.named_scope("mlp.up"):
                return jnp.tanh(x_BD @ w_DD), None

        x_BD, _ = jax.lax.scan(layer, x_BD, w_LDD)
        return jnp.sum(x_BD.astype(jnp.float32) ** 2)

    args = (
        jax.ShapeDtypeStruct((layers, d, d), jnp.bfloat16, sharding=_over(mesh)),
        jax.ShapeDtypeStruct((rows, d), jnp.bfloat16, sharding=_over(mesh, "data")),
    )
    return Program(name="scan", fn=jax.grad(loss), args=args, mesh=mesh)
