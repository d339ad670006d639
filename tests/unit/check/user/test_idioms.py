"""Programs in the idioms of other authors are checked as they are."""

from __future__ import annotations

import io
import os
import sys
import types

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import mesh_utils

from shardwise.check.compiling.aot import compile_program, target_devices
from shardwise.check.compiling.environment import choose_target
from shardwise.check.compiling.process import COMPILER_ENVIRONMENT
from shardwise.check.compiling.result import Compiled, Failure, ShardingError
from shardwise.check.user.api import build_named, compile_named
from shardwise.check.user.function import _report
from shardwise.check.user.machine_view import show_machine
from shardwise.check.user.translate import _with_leaves
from shardwise.errors import BadInput, BadSharding
from shardwise.hardware import parse_system
from shardwise.report.check.function import blocks
from shardwise.report.style import render
from tests.unit.check.compilers import needs

IDIOMS = "tests.unit.check.user.idioms"


def compiled(name: str, args: str = "", on: str = "v5e:2x2") -> Compiled | Failure:
    """Compile a program of `idioms` as the compiling process does, in this one."""
    for variable, value in COMPILER_ENVIRONMENT.items():
        os.environ.setdefault(variable, value)
    target = choose_target(parse_system(on))
    devices = target_devices(target)
    return compile_program(
        target,
        lambda: build_named(
            devices,
            name=f"{IDIOMS}:{name}",
            args_function=f"{IDIOMS}:{args or f'{name}_args'}",
            machine=on,
        ),
    )


@needs("tpu")
def test_jax_shows_the_machine_and_computes_here() -> None:
    for variable, value in COMPILER_ENVIRONMENT.items():
        os.environ.setdefault(variable, value)
    devices = target_devices(choose_target(parse_system("v5e:2x2")))
    with show_machine(devices, "tpu"):
        assert [device.id for device in jax.devices()] == [0, 1, 2, 3]
        assert jax.devices("tpu") == jax.local_devices() == sorted(devices.flat, key=lambda d: d.id)
        assert (jax.device_count(), jax.local_device_count()) == (4, 4)
        assert jax.devices("cpu")[0].platform == "cpu"
        assert mesh_utils.create_device_mesh((4,))[0].platform == "tpu"
        assert mesh_utils.create_device_mesh((1,), jax.devices("cpu")[:1])[0].platform == "cpu"
        assert jnp.ones(4).sum() == 4
    assert jax.devices()[0].platform == "cpu"


@needs("tpu")
@pytest.mark.parametrize("args", ["sharded_args", "set_mesh_args", "with_mesh_args"])
def test_a_mesh_in_context(args: str) -> None:
    program = compiled("constrained", args)
    assert isinstance(program, Compiled), program
    assert program.mesh == {"data": 2, "model": 2}
    # A quarter of the products of 128 x 256 by 256 x 512, and the elements of tanh.
    assert program.cost["flops"] < 2 * 128 * 256 * 512 / 4 * 1.1
    # Without a sharding an argument is whole on every device.
    whole = 2 * (256 * 512 + 128 * 256)
    sharded = 2 * (256 * 256 + 64 * 256)
    assert program.memory.arguments == (sharded if args == "sharded_args" else whole)
    # Nothing of the program's context or of the machine's devices is left behind.
    assert jax.sharding.get_mesh().empty
    assert jax.devices()[0].platform == "cpu"
    assert jax.default_backend() == "cpu"


@needs("tpu")
def test_a_mesh_of_the_devices_keeps_its_order() -> None:
    program = compiled("constrained", "permuted_args")
    assert isinstance(program, Compiled), program
    # The grid has y run fastest, then x.
    assert [place.coords[:2] for place in program.places] == [(1, 0), (0, 0), (1, 1), (0, 1)]


@needs("tpu")
def test_explicit_shardings() -> None:
    program = compiled("explicit")
    assert isinstance(program, Compiled), program
    assert program.mesh == {"data": 2, "model": 2}
    assert "all-gather" in program.hlo


@needs("tpu")
def test_a_kernel_is_compiled_for_the_machine() -> None:
    program = compiled("with_kernel")
    assert isinstance(program, Compiled), program
    assert "tpu_custom_call" in program.hlo
    assert "double" in program.hlo
    report = _report("with_kernel", "v5e:2x2", program, None)
    assert report.uncounted_kernels == ("double",)
    told = "FLOPs of kernels that give no cost_estimate are not counted: double"
    assert told in render(blocks(report), io.StringIO())


@needs("tpu")
@pytest.mark.parametrize(("name", "args"), [("stated", ""), ("bound", "")])
def test_shardings_and_donation_of_a_jit_inside(name: str, args: str) -> None:
    program = compiled(name, args)
    assert isinstance(program, Compiled), program
    assert program.mesh == {"data": 2, "model": 2}
    assert program.memory.arguments == 2 * (512 * 256 + 512 * 256)
    assert program.memory.alias == 2 * 512 * 256


@needs("tpu")
def test_another_mesh_inside() -> None:
    program = compiled("other_mesh")
    assert isinstance(program, Compiled), program
    assert program.mesh == {"data": 2, "model": 2}
    assert "all-reduce" in program.hlo
    # `jax.make_mesh` has another order of the devices, which JAX refuses in one program.
    failure = compiled("other_mesh", "with_kernel_args")
    assert isinstance(failure, ShardingError)
    assert "incompatible devices" in failure.text


@needs("tpu")
@pytest.mark.parametrize("name", ["wrapped", "arrays_only"])
def test_jits_of_libraries(name: str) -> None:
    program = compiled(name, "sharded_args")
    assert isinstance(program, Compiled), program
    assert program.mesh == {"data": 2, "model": 2}
    assert program.memory.arguments == 2 * (256 * 256 + 64 * 256)
    if name == "arrays_only":
        assert program.memory.alias == 2 * 256 * 256


@needs("tpu")
@pytest.mark.parametrize("args", ["computed_args", "placed_args"])
def test_arguments_that_are_computed_are_refused(args: str) -> None:
    with pytest.raises(BadInput, match=r"devices of v5e:2x2, which compile but do not run"):
        compiled("constrained", args)


@needs("tpu")
def test_a_program_without_its_mesh_is_told_how_to_give_it() -> None:
    with pytest.raises(BadSharding, match=r"(?s)data.*Shard an argument over your mesh, or yield"):
        compiled("constrained", "unsharded_args")


@jax.tree_util.register_pytree_node_class
class SharedTwice:
    """Stands for a module of Flax whose two parts share a variable: as a tree it has two leaves."""

    def __init__(self, *parts: list[object]) -> None:
        self.parts = parts

    def tree_flatten(self) -> tuple[tuple[list[object], ...], None]:
        return self.parts, None

    @classmethod
    def tree_unflatten(cls, _: None, parts: tuple[list[object], ...]) -> SharedTwice:
        return cls(*parts)


def test_shared_variables_of_flax_stay_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    flax = types.ModuleType("flax.nnx")
    flax.Pytree = SharedTwice  # type: ignore[attr-defined]
    flax.split = lambda args: (None, [args[0].parts[0], args[1]])  # type: ignore[attr-defined]
    flax.merge = lambda _, state: (  # type: ignore[attr-defined]
        SharedTwice(state[0], state[0]),
        state[1],
    )
    monkeypatch.setitem(sys.modules, "flax.nnx", flax)
    old, other, new = (jax.ShapeDtypeStruct((size,), "float32") for size in (1, 2, 3))
    variable: list[object] = [old]
    module, last = _with_leaves((SharedTwice(variable, variable), other), [new, new, other])
    assert module.parts[0] is module.parts[1]
    assert module.parts[0] == [new]
    assert last is other


@needs("tpu")
def test_a_generator_has_to_yield_the_arguments() -> None:
    with pytest.raises(BadInput, match="no_args yields nothing"):
        compiled("constrained", "no_args")


@needs("tpu")
def test_the_compiling_process_shows_the_machine() -> None:
    program = compile_named(f"{IDIOMS}:with_kernel", on="v5e:2x2")
    assert isinstance(program, Compiled), program
    assert "tpu_custom_call" in program.hlo
