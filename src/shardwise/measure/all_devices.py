"""The devices that are measured, all of them busy with the same operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from shardwise.measure.timing import Call, Part

Arrays = Sequence[tuple[tuple[int, ...], Any]]  # shape and dtype of each
Pool = dict[Any, Any]  # position, shape, dtype and size of a group -> an array
SHORTEST_S = 1e-7  # of an operation
SPEC = PartitionSpec(("group", "member"))


class Program(NamedTuple):
    """What all devices run at once, each on arrays of its own.

    Args:
        function: takes an array of each device for each of `arrays`.
        group_size: devices of a group, over whose mesh axis `member` collectives may run.
        in_place: number of first arrays that `function` returns, in their places.
        repeats: times that the program computes the function, each on arrays of their own: the
            arrays of results that a program begins with take time that no operation of a training
            step does.
    """

    function: Callable[..., Any]
    arrays: Arrays
    group_size: int = 1
    in_place: int = 0
    repeats: int = 1

    def run(self, *blocks: Any) -> Any:
        """All repeats of the function."""
        n = len(self.arrays)
        return [self.function(*blocks[i * n : (i + 1) * n]) for i in range(self.repeats)]


NOTHING = Program(lambda x: x + 1, [((1,), jnp.float32)])


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

    def seconds(self, program: Program) -> Part[float]:
        """As `seconds_of_each` of one program."""
        (seconds,) = yield from self.seconds_of_each([program])
        return seconds

    def seconds_of_each(self, programs: Sequence[Program]) -> Part[list[float]]:
        """Seconds of each function, beyond those of a program that does almost nothing."""
        shared: Pool = {}
        dispatch_s, *seconds = yield [self.prepared(p, shared) for p in (NOTHING, *programs)]
        return [
            max(program_s - dispatch_s, SHORTEST_S) / program.repeats
            for program, program_s in zip(programs, seconds, strict=True)
        ]

    def prepared(self, program: Program, shared: Pool) -> Callable[[], Call]:
        """A function that compiles a program and returns a call of it.

        Args:
            shared: arrays of other programs, which it reads too if it writes none in place.
        """
        pool = {} if program.in_place else shared
        values = self._values(program, pool)
        return partial(self._call, program, values)

    def _call(self, program: Program, values: list[Any]) -> Call:
        run = self._compiled(program, values)

        def call() -> Any:
            results = run(*values)
            if program.in_place:
                values[: program.in_place] = results[0][: program.in_place]
            return results

        return call

    def _values(self, program: Program, pool: Pool) -> list[Any]:
        """Arrays of all devices: those in `pool`, or new ones, which are kept there."""
        sharding = NamedSharding(self.grid(program.group_size), SPEC)
        values = []
        for i, (shape, dtype) in enumerate(list(program.arrays) * program.repeats):
            key = (i, shape, dtype, program.group_size)
            if key not in pool:
                pool[key] = self._numbers(shape, dtype, sharding)
            values.append(pool[key])
        return values

    def _numbers(self, shape: tuple[int, ...], dtype: Any, sharding: Any) -> Any:
        """Random numbers of all devices; those of a GPU or TPU are many, and are made there."""
        if self.platform == "cpu" or jnp.issubdtype(dtype, jnp.integer):
            of_all = np.broadcast_to(random_numbers(shape, dtype), (self.n, *shape))
            return jax.device_put(of_all, sharding)
        make = jax.jit(
            partial(jax.random.normal, shape=(self.n, *shape), dtype=dtype), out_shardings=sharding
        )
        return make(jax.random.key(0))

    def _compiled(self, program: Program, values: Sequence[Any]) -> Any:
        """The program that runs the function on all devices at once."""

        def local(*blocks: Any) -> Any:
            return jax.tree.map(lambda x: x[None], program.run(*(block[0] for block in blocks)))

        mesh = self.grid(program.group_size)
        mapped = jax.shard_map(local, mesh=mesh, in_specs=SPEC, out_specs=SPEC, check_vma=False)
        run = jax.jit(mapped, donate_argnums=tuple(range(program.in_place)))
        return run.lower(*values).compile()


def random_numbers(shape: tuple[int, ...], dtype: Any) -> Any:
    """Numbers around 0: exponentials and clocks depend on values."""
    if jnp.issubdtype(dtype, jnp.integer):
        return np.zeros(shape, dtype)
    return np.random.default_rng(0).standard_normal(shape, np.float32).astype(dtype)
