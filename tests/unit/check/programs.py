"""Small programs for the tests of compiling, built by name in the compiling process."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from shardwise.errors import NotDivisible
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


def overflow(devices: np.ndarray[Any, Any]) -> Program:
    """A kernel whose scratch is larger than what it may have of VMEM."""
    mesh = Mesh(devices.reshape(-1), ("data",))
    shape = (4096, 2048)

    def kernel(x_ref: Any, out_ref: Any, scratch_ref: Any) -> None:
        scratch_ref[...] = 2.0 * x_ref[...]
        out_ref[...] = scratch_ref[...]

    def fn(x_BD: jax.Array) -> jax.Array:
        with jax.named_scope("mlp.up"):
            return pl.pallas_call(
                kernel,
                out_shape=jax.ShapeDtypeStruct(shape, jnp.float32),
                scratch_shapes=[pltpu.VMEM(shape, jnp.float32)],
            )(x_BD)

    x_BD = jax.ShapeDtypeStruct(shape, jnp.float32, sharding=_over(mesh))
    return Program(name="overflow", fn=fn, args=(x_BD,), mesh=mesh)


def indivisible(devices: np.ndarray[Any, Any]) -> Program:
    """An array of 3 rows over 4 devices."""
    mesh = Mesh(devices.reshape(-1), ("data",))
    x_B = jax.ShapeDtypeStruct((3,), jnp.float32, sharding=_over(mesh, "data"))
    return Program(name="indivisible", fn=jnp.sin, args=(x_B,), mesh=mesh)


def refused(devices: np.ndarray[Any, Any]) -> Program:
    raise NotDivisible("6 heads over 4 devices.", "Nearest: 3, 6.")


def broken(devices: np.ndarray[Any, Any]) -> Program:
    raise RuntimeError("no such thing")


def crashing(devices: np.ndarray[Any, Any]) -> Program:
    print("about to crash", flush=True)
    os._exit(7)


def exiting(devices: np.ndarray[Any, Any]) -> Program:
    sys.exit("not on this machine")


def killed(devices: np.ndarray[Any, Any]) -> Program:
    os.kill(os.getpid(), signal.SIGKILL)
    return matmul(devices)


def sleeping(devices: np.ndarray[Any, Any]) -> Program:
    time.sleep(60)
    return matmul(devices)


def hungry(devices: np.ndarray[Any, Any]) -> Program:
    held = np.ones(2**27)  # 1 GiB, written
    time.sleep(60)
    return matmul(devices, m=int(held[0]))


# A user's own functions, as they are named on the command line.


def train_step(w_DF: jax.Array, x_BD: jax.Array) -> jax.Array:
    with jax.named_scope("mlp.up"):
        return jnp.sum(x_BD @ w_DF)


def train_step_args() -> tuple[Any, ...]:
    mesh = AbstractMesh((2, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    return (
        jax.ShapeDtypeStruct((256, 512), jnp.bfloat16, sharding=_over(mesh, None, "model")),
        jax.ShapeDtypeStruct((128, 256), jnp.bfloat16, sharding=_over(mesh, "data")),
    )


def args_of_devices(devices: np.ndarray[Any, Any]) -> tuple[Any, ...]:
    mesh = Mesh(devices.reshape(-1), ("all",))
    return (
        jax.ShapeDtypeStruct((256, 512), jnp.bfloat16, sharding=_over(mesh)),
        jax.ShapeDtypeStruct((128, 256), jnp.bfloat16, sharding=_over(mesh, "all")),
    )


def args_of_two(first: int, second: int) -> tuple[Any, ...]:
    return (first, second)


def args_of_nothing() -> None: ...


def _over(mesh: Mesh | AbstractMesh, *axes: str | None) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec(*axes))


def scan(devices: np.ndarray[Any, Any], *, layers: int, d: int = 4096, rows: int = 512) -> Program:
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


def uneven(x_B: jax.Array) -> jax.Array:
    return jnp.sin(x_B)


def uneven_args() -> tuple[Any, ...]:
    mesh = AbstractMesh((4,), ("data",), axis_types=(AxisType.Auto,))
    return (jax.ShapeDtypeStruct((3,), jnp.float32, sharding=_over(mesh, "data")),)
