"""Small programs as their authors write them, each in another idiom of sharding and jitting."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, reshard

P = PartitionSpec
AUTO = (AxisType.Auto,) * 2


def shape(*sizes: int, dtype: Any = jnp.bfloat16, sharding: Any = None) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, dtype, sharding=sharding)


def mesh_of_all(axis_types: tuple[AxisType, ...] = AUTO) -> Mesh:
    """The mesh of a script: all devices that JAX has, over two axes."""
    return jax.make_mesh((2, jax.device_count() // 2), ("data", "model"), axis_types=axis_types)


# A mesh that is only in context, as bare axis names need it.


def constrained(w_DF: jax.Array, x_BD: jax.Array) -> jax.Array:
    h_BF = jax.lax.with_sharding_constraint(x_BD @ w_DF, P("data", "model"))
    return jnp.tanh(h_BF)


def sharded_args() -> tuple[Any, ...]:
    """The mesh is that of the arguments."""
    mesh = mesh_of_all()
    w_DF = shape(256, 512, sharding=NamedSharding(mesh, P(None, "model")))
    return w_DF, shape(128, 256, sharding=NamedSharding(mesh, P("data")))


def set_mesh_args() -> Iterator[tuple[Any, ...]]:
    """The mesh is in context, and the arguments have none."""
    with jax.set_mesh(mesh_of_all()):
        yield shape(256, 512), shape(128, 256)


def with_mesh_args() -> Iterator[tuple[Any, ...]]:
    """The same by the older context."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        with mesh_of_all():
            yield shape(256, 512), shape(128, 256)


def unsharded_args() -> tuple[Any, ...]:
    """No mesh at all."""
    return shape(256, 512), shape(128, 256)


def permuted_args(devices: np.ndarray[Any, Any]) -> tuple[Any, ...]:
    """A mesh in an order of its author."""
    order = devices.reshape(-1)[[2, 0, 3, 1]].reshape(2, 2)
    mesh = Mesh(order, ("data", "model"), axis_types=AUTO)
    w_DF = shape(256, 512, sharding=NamedSharding(mesh, P(None, "model")))
    return w_DF, shape(128, 256, sharding=NamedSharding(mesh, P("data")))


# Explicit sharding: shardings are part of the types of arrays.


def explicit(w_DF: jax.Array, x_BD: jax.Array) -> jax.Array:
    h_BF = x_BD @ w_DF
    if jax.typeof(h_BF).sharding.spec != P("data", "model"):
        raise TypeError(f"{jax.typeof(h_BF)}")
    return reshard(h_BF, P("data", None)) + jnp.zeros(512, jnp.bfloat16)


def explicit_args() -> tuple[Any, ...]:
    mesh = mesh_of_all((AxisType.Explicit,) * 2)
    w_DF = shape(256, 512, sharding=NamedSharding(mesh, P(None, "model")))
    return w_DF, shape(128, 256, sharding=NamedSharding(mesh, P("data", None)))


# A kernel for TPUs without any other implementation, in a shard_map.


def double(x_BD: jax.Array) -> jax.Array:
    def kernel(x_ref: Any, out_ref: Any) -> None:
        out_ref[...] = 2 * x_ref[...]

    if jax.default_backend() != "tpu" or jax.devices()[0].platform != "tpu":
        raise NotImplementedError("This kernel is for TPUs.")
    return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x_BD.shape, x_BD.dtype))(x_BD)


def with_kernel(x_BD: jax.Array) -> jax.Array:
    with jax.named_scope("double"):
        return jax.shard_map(double, in_specs=P("data"), out_specs=P("data"), check_vma=False)(x_BD)


def with_kernel_args() -> jax.ShapeDtypeStruct:
    return shape(64, 256, sharding=NamedSharding(mesh_of_all(), P("data")))


# All shardings stand in the jit; its first argument is a configuration and no array.


@dataclass(frozen=True)
class Config:
    scale: float
    activation: Any


def update(config: Config, state: dict[str, jax.Array], x_BD: jax.Array) -> dict[str, jax.Array]:
    return {"w": state["w"] + config.activation(config.scale * jnp.sum(x_BD))}


def jitted_update() -> tuple[Any, Mesh]:
    mesh = mesh_of_all()
    state = {"w": NamedSharding(mesh, P("model"))}
    jitted = jax.jit(
        update,
        static_argnums=0,
        donate_argnums=1,
        in_shardings=(state, NamedSharding(mesh, P("data"))),
        out_shardings=state,
    )
    return jitted, mesh


def stated(config: Config, state: dict[str, jax.Array], x_BD: jax.Array) -> dict[str, jax.Array]:
    """A plain function around the jitted one."""
    jitted, _ = jitted_update()
    result: dict[str, jax.Array] = jitted(config, state, x_BD)
    return result


def stated_args() -> tuple[Any, ...]:
    array = shape(1024, 256)
    return Config(2.0, jnp.tanh), {"w": array}, array


bound = functools.partial(stated, Config(2.0, jnp.tanh))


def bound_args() -> tuple[Any, ...]:
    return stated_args()[1:]


# Another mesh inside than that of the arguments.


def other_mesh_args() -> jax.ShapeDtypeStruct:
    square = Mesh(np.array(jax.devices()).reshape(2, 2), ("data", "model"), axis_types=AUTO)
    return shape(64, 256, sharding=NamedSharding(square, P("data")))


def other_mesh(x_BD: jax.Array) -> jax.Array:
    line = Mesh(np.array(jax.devices()), ("all",), axis_types=AUTO[:1])
    add = jax.shard_map(
        lambda x_D: jax.lax.psum(x_D, "all"), mesh=line, in_specs=P("all"), out_specs=P()
    )
    return add(x_BD)


# Libraries have jits of their own, which wrap what JAX returns, or take only arrays.


class WrappedJit:
    """A jit whose lowered programs are wrapped, as those of Flax."""

    def __init__(self, jitted: Any) -> None:
        self.jitted = jitted
        self.trace = jitted.trace

    def __call__(self, *args: Any) -> Any:
        return self.jitted(*args)

    def lower(self, *args: Any) -> Any:
        return LoweredWrapper(self.jitted.lower(*args))


@dataclass
class LoweredWrapper:
    lowered: jax.stages.Lowered


class ArraysOnly:
    """A jit that takes whatever is no array as static, shapes too, as that of Equinox."""

    def __init__(self, jitted: Any) -> None:
        self.jitted = jitted

    def __call__(self, *args: Any) -> Any:
        if not all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(args)):
            raise TypeError("an argument is static")
        return self.jitted(*args)

    def lower(self, *args: Any) -> Any:
        return self(*args)


wrapped = WrappedJit(jax.jit(constrained, donate_argnums=0))
arrays_only = ArraysOnly(jax.jit(lambda w, x: (jnp.tanh(w), jnp.sum(x)), donate_argnums=0))


# Arguments that are computed on devices that do not run.


def computed_args() -> tuple[Any, ...]:
    sharding = NamedSharding(mesh_of_all(), P(None, "model"))
    return jax.jit(lambda: jnp.zeros((256, 512)), out_shardings=sharding)(), shape(128, 256)


def placed_args() -> tuple[Any, ...]:
    sharding = NamedSharding(mesh_of_all(), P(None, "model"))
    return jax.device_put(np.zeros((256, 512)), sharding), shape(128, 256)


def no_args() -> Iterator[tuple[Any, ...]]:
    yield from ()
