"""XLA on eight devices of this machine's CPU. JAX is loaded by the first test that asks for it."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import pytest

from shardwise.ops.einsum import Array, Einsum
from tests.oracle.hlo import Module

N_DEVICES = 8
F32 = 4  # bytes; XLA:CPU widens bf16 before it multiplies, so the tests stay with f32


@functools.cache
def load() -> ModuleType:
    """JAX with eight CPU devices, whatever else the machine has."""
    jax = pytest.importorskip("jax")
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", N_DEVICES)
    return jax


@functools.cache
def _mesh(sizes: tuple[tuple[str, int], ...]) -> Any:
    import numpy as np

    jax = load()
    n = math.prod(size for _, size in sizes)
    devices = np.array(jax.devices()[:n]).reshape([size for _, size in sizes])
    names = tuple(name for name, _ in sizes)
    return jax.sharding.Mesh(devices, names)


def sharding(mesh: Mapping[str, int], dims: Sequence[tuple[str, ...]]) -> Any:
    """Mesh axes of each dim -> NamedSharding; axes that the mesh lacks shard nothing."""
    jax = load()
    spec = [tuple(a for a in axes if a in mesh) or None for axes in dims]
    return jax.sharding.NamedSharding(_mesh(tuple(mesh.items())), jax.sharding.PartitionSpec(*spec))


def compile_einsum(einsum: Einsum, sizes: Mapping[str, int], mesh: Mapping[str, int]) -> Any:
    """The einsum under jit with the shardings of its arrays."""
    jax = load()
    letters = {d: chr(ord("a") + i) for i, d in enumerate(einsum.dims)}
    left, right, output = (
        "".join(letters[d] for d in a.names) for a in (*einsum.inputs, einsum.output)
    )

    def product(a: Any, b: Any) -> Any:
        return jax.numpy.einsum(f"{left},{right}->{output}", a, b)

    of = [sharding(mesh, [d.axes for d in a.dims]) for a in (*einsum.inputs, einsum.output)]
    shapes = [_shape(array, sizes) for array in einsum.inputs]
    fixed = jax.jit(product, in_shardings=(of[0], of[1]), out_shardings=of[2])
    return fixed.lower(*shapes).compile()


def _shape(array: Array, sizes: Mapping[str, int]) -> Any:
    jax = load()
    return jax.ShapeDtypeStruct([sizes[d] for d in array.names], jax.numpy.float32)


def read(compiled: Any) -> Module:
    """The compiled program."""
    return Module(compiled.as_text())
