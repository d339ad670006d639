"""The devices that are measured, all of them busy with the same operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from shardwise.measure.timing import median_s, medians_s

Arrays = Sequence[tuple[tuple[int, ...], Any]]  # shape and dtype of each
Pool = dict[Any, Any]  # position, shape and dtype -> an array
SHORTEST_S = 1e-7  # of an operation
SPEC = PartitionSpec(("group", "member"))


@dataclass(frozen=True)
class AllDevices:
    """Devices that work at the same time, as in a training step.

    Args:
        devices: of this process.
    """

    devices: Sequence[Any]

    @property
    def n(self) -> int:
        """Number of devices."""
        return len(self.devices)

    @property
    def platform(self) -> str:
        """JAX's name of their platform: `cpu`, `gpu` or `tpu`."""
        name: str = self.devices[0].platform
        return name

    def grid(self, group_size: int) -> Mesh:
        """The devices in groups: mesh axes `group` and `member`."""
        shape = (-1, group_size)
        return Mesh(np.array(self.devices).reshape(shape), ("group", "member"))

    def seconds(
        self,
        function: Callable[..., Any],
        arrays: Arrays,
        *,
        group_size: int = 1,
        in_place: int = 0,
    ) -> float:
        """Median seconds of `function` in a program that all devices run at once.

        What a program takes that does nothing is left out.

        Args:
            function: takes an array of each device for each of `arrays`.
            group_size: devices of a group, over whose mesh axis `member` collectives may run.
            in_place: number of first arrays that `function` returns, in their places.
        """
        return self._beyond_dispatch(median_s(self.call(function, arrays, group_size, in_place)))

    def seconds_of_each(
        self, functions: Sequence[tuple[Callable[..., Any], Arrays]]
    ) -> list[float]:
        """As `seconds` of each of some functions, which take turns."""
        shared: Pool = {}
        values = [self._values(arrays, 1, shared) for _, arrays in functions]
        with ThreadPoolExecutor() as threads:  # compilation takes longer than the trials
            runs = list(threads.map(self._compiled, (f for f, _ in functions), values))
        calls = [partial(run, *inputs) for run, inputs in zip(runs, values, strict=True)]
        return [self._beyond_dispatch(seconds) for seconds in medians_s(calls)]

    def _beyond_dispatch(self, seconds: float) -> float:
        return max(seconds - self.dispatch_s, SHORTEST_S)

    @cached_property
    def dispatch_s(self) -> float:
        """Seconds of a program that does almost nothing, until its result is there."""
        return median_s(self.call(lambda x: x + 1, [((1,), jnp.float32)]))

    def call(
        self,
        function: Callable[..., Any],
        arrays: Arrays,
        group_size: int = 1,
        in_place: int = 0,
    ) -> Callable[[], Any]:
        """A function that runs the program once, on arrays of its own."""
        values = self._values(arrays, group_size, {})
        run = self._compiled(function, values, group_size, in_place)

        def call() -> Any:
            results = run(*values)
            if in_place:
                values[:in_place] = results[:in_place]
            return results

        return call

    def _values(self, arrays: Arrays, group_size: int, pool: Pool) -> list[Any]:
        """Arrays of all devices: those in `pool`, or new ones, which are kept there."""
        sharding = NamedSharding(self.grid(group_size), SPEC)
        values = []
        for i, (shape, dtype) in enumerate(arrays):
            key = (i, shape, dtype)
            if key not in pool:
                pool[key] = jax.device_put(random_numbers((self.n, *shape), dtype), sharding)
            values.append(pool[key])
        return values

    def _compiled(
        self,
        function: Callable[..., Any],
        values: Sequence[Any],
        group_size: int = 1,
        in_place: int = 0,
    ) -> Any:
        """The program that runs `function` on all devices at once."""

        def local(*blocks: Any) -> Any:
            return jax.tree.map(lambda x: x[None], function(*(block[0] for block in blocks)))

        mesh = self.grid(group_size)
        mapped = jax.shard_map(local, mesh=mesh, in_specs=SPEC, out_specs=SPEC, check_vma=False)
        run = jax.jit(mapped, donate_argnums=tuple(range(in_place)))
        return run.lower(*values).compile()


def random_numbers(shape: tuple[int, ...], dtype: Any) -> Any:
    """Numbers around 0: exponentials and clocks depend on values."""
    if jnp.issubdtype(dtype, jnp.integer):
        return np.zeros(shape, dtype)
    values = np.random.default_rng(0).standard_normal(shape[1:], np.float32)
    return np.broadcast_to(values, shape).astype(dtype)
