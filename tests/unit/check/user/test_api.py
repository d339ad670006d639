"""A user's own function: its mesh keeps its shape and gets the machine's devices."""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from shardwise.check.compiling.result import Compiled, ShardingError
from shardwise.check.user.api import build_named, compile_function, compile_named
from shardwise.errors import BadInput, BadShape
from shardwise.runtime.program import Program
from tests.arch.fresh import run
from tests.unit.check.compilers import needs
from tests.unit.check.programs import train_step

PROGRAMS = "tests.unit.check.programs"


def mesh(*sizes: int) -> AbstractMesh:
    return AbstractMesh(sizes, ("data", "model")[: len(sizes)], (AxisType.Auto,) * len(sizes))


def shape(sizes: tuple[int, ...], on: AbstractMesh, *axes: str | None) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(
        sizes, jnp.bfloat16, sharding=NamedSharding(on, PartitionSpec(*axes))
    )


@needs("tpu")
def test_a_function_with_shapes_on_an_abstract_mesh() -> None:
    w_DF = shape((256, 512), mesh(2, 2), None, "model")
    x_BD = shape((128, 256), mesh(2, 2), "data")
    made = compile_function(train_step, w_DF, x_BD, on="v5e:2x2")
    assert isinstance(made, Compiled)
    assert made.name == "train_step"
    assert made.mesh == {"data": 2, "model": 2}
    assert made.memory.arguments == 2 * (256 * 256 + 64 * 256)
    assert "mlp.up" in made.hlo


@needs("tpu")
def test_arrays_on_no_mesh_are_on_every_device() -> None:
    w_DF, x_BD = jnp.zeros((256, 512), jnp.bfloat16), np.zeros((128, 256), jnp.bfloat16)
    made = compile_function(jax.jit(train_step), w_DF, x_BD, on="v5e:2x2")
    assert isinstance(made, Compiled)
    assert made.mesh == {"devices": 4}
    assert made.memory.arguments == 2 * (256 * 512 + 128 * 256)


@needs("tpu")
def test_donation_is_kept() -> None:
    made = compile_function(
        jax.jit(jnp.sin, donate_argnums=0), shape((128, 256), mesh(4), "data"), on="v5e:2x2"
    )
    assert isinstance(made, Compiled)
    assert made.memory.alias == made.memory.arguments == 2 * 32 * 256


@needs("cpu")
def test_an_array_that_is_updated_in_place() -> None:
    def step(w: jax.Ref, count: jax.Array, x: jax.Array) -> jax.Array:
        # The count has a weak type: with another one the difference would be in fp32.
        w[...] -= x.astype(w.dtype) / (1 - 0.5**count)
        return jnp.sum(x)

    w = jax.ShapeDtypeStruct((128, 8), jnp.bfloat16, is_ref=True)
    count = jax.ShapeDtypeStruct((), jnp.int32, weak_type=True)
    x = jax.ShapeDtypeStruct((128, 8), jnp.float32)
    compiled = compile_function(jax.jit(step), w, count, x, on="cpu:1")
    assert isinstance(compiled, Compiled), compiled
    assert compiled.memory.alias == 2 * 128 * 8
    assert compiled.results == ()


OWN_MESH = """
import jax, numpy as np
from jax.experimental import pallas as pl
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from shardwise.check.user.api import compile_function
def copy(x_ref, out_ref):
    out_ref[...] = x_ref[...]
mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("data", "model"))
x = jax.device_put(np.ones((8, 128), np.float32), NamedSharding(mesh, P("data", "model")))
double = lambda x: jax.lax.psum(2 * x, "model")
fn = jax.shard_map(double, mesh=mesh, in_specs=P("data", "model"), out_specs=P("data"))
put = lambda x: jax.lax.with_sharding_constraint(fn(x), NamedSharding(mesh, P("data")))
made = compile_function(jax.jit(lambda x: x + 1, donate_argnums=0), x, on="v5e:2x2")
print(made.mesh, made.memory.alias == made.memory.arguments)
made = compile_function(put, x, on="v5e:2x2")
print(made.mesh, "all-reduce" in made.hlo)
kernel = pl.pallas_call(copy, out_shape=jax.ShapeDtypeStruct((4, 64), np.float32))
fn = jax.shard_map(kernel, mesh=mesh, in_specs=P("data", "model"), out_specs=P("data", "model"),
                   check_vma=False)
made = compile_function(fn, x, on="v5e:2x2")
print(made.mesh, "tpu_custom_call" in made.hlo)
constrain = lambda x: jax.lax.with_sharding_constraint(x, P("model"))
with jax.set_mesh(mesh):
    made = compile_function(constrain, jax.ShapeDtypeStruct((8, 128), np.float32), on="v5e:2x2")
print(made.mesh, jax.sharding.get_mesh().empty)
"""


@needs("tpu")
def test_a_function_that_names_its_own_mesh_of_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    code, text = run("-c", OWN_MESH)
    assert (code, text) == (0, "{'data': 2, 'model': 2} True\n" * 4)


def built(name: str, args: str) -> Program:
    devices = np.array(jax.devices("cpu")[:1])
    return build_named(devices, name=name, args_function=args, machine="cpu:1")


@needs("cpu")
def test_a_mesh_of_another_size_is_refused() -> None:
    with pytest.raises(BadShape, match=r"mesh of 4 devices \(data 2 x model 2\), but cpu:1 has 1"):
        built(f"{PROGRAMS}:train_step", f"{PROGRAMS}:train_step_args")


@needs("tpu")
def test_two_meshes_are_refused() -> None:
    with pytest.raises(BadInput, match="several meshes: data 2 x model 2 and data 4"):
        compile_function(
            train_step,
            shape((256, 512), mesh(2, 2)),
            shape((128, 256), mesh(4)),
            on="v5e:2x2",
        )


@needs("tpu")
def test_a_sharding_that_does_not_divide_is_told_as_a_value() -> None:
    failure = compile_function(jnp.sin, shape((3,), mesh(4), "data"), on="v5e:2x2")
    assert isinstance(failure, ShardingError)


@needs("cpu")
@pytest.mark.parametrize(
    ("args", "axes"),
    [("", {"data": 2, "model": 2}), (f"{PROGRAMS}:args_of_devices", {"all": 4})],
)
def test_a_function_by_its_name(args: str, axes: dict[str, int]) -> None:
    made = compile_named(f"{PROGRAMS}:train_step", args, on="cpu:4")
    assert isinstance(made, Compiled)
    assert made.mesh == axes


@needs("cpu")
def test_a_function_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "sizes_of_mine.py").write_text("SIZES = (8, 128)")
    path = tmp_path / "step_of_mine.py"
    path.write_text(
        "import jax.numpy as jnp\nfrom sizes_of_mine import SIZES\n"
        "step = jnp.sin\ndef step_args(): return jnp.zeros(SIZES)\n"
    )
    program = built(f"{path}:step", f"{path}:step_args")
    assert program.args[0].shape == (8, 128)
    # The first of Python's path is the file's folder, as for a script.
    assert sys.path.pop(0) == str(tmp_path)


@needs("cpu")
def test_a_function_in_a_file_of_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    package = tmp_path / "package_of_mine"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "sizes.py").write_text("SIZES = (8, 128)")
    path = package / "step.py"
    path.write_text(
        "import jax.numpy as jnp\nfrom .sizes import SIZES\n"
        "step = jnp.sin\ndef step_args(): return jnp.zeros(SIZES)\n"
    )
    assert built(f"{path}:step", f"{path}:step_args").args[0].shape == (8, 128)


@needs("cpu")
@pytest.mark.parametrize(
    ("name", "args", "words"),
    [
        ("nowhere.py:step", "", "there is no file nowhere.py"),
        ("nowhere.at.all:step", "", 'there is no module "nowhere"'),
        ("train_step", "", "Write module:function"),
        (f"{PROGRAMS}:args_of_devices", "", "or name another function with --args module:function"),
        (f"{PROGRAMS}:PROGRAM", "", 'has no "PROGRAM"'),
        (f"{PROGRAMS}:train_step", f"{PROGRAMS}:args_of_two", "takes first, second"),
        (
            f"{PROGRAMS}:train_step",
            f"{PROGRAMS}:args_of_nothing",
            "args_of_nothing returns nothing",
        ),
    ],
)
def test_names_that_lead_nowhere(name: str, args: str, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        built(name, args or f"{name}_args")
