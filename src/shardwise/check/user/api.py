"""Compile a user's function: from Python, and from the command line by its name.

From Python, `compile_function(train_step, state, batch, on="v5e:4x4")`: the arguments are arrays or
`jax.ShapeDtypeStruct`s, on a mesh of CPU devices, on an `AbstractMesh`, or on none. Nothing runs.

On the command line a function is named `module:function`, and its arguments come from a second
function, by default `module:function_args`. It takes no arguments and returns those of the first
function: a tuple of them, or the argument itself if there is only one.

    def train_step_args():
        mesh = jax.sharding.AbstractMesh((4, 4), ("data", "model"))
        return state_shapes(mesh), batch_shapes(mesh)

To build a mesh from the devices of the machine, it takes one argument named `devices`: a NumPy
array with axes (slice, torus coordinates, core of a chip) on TPUs, or (domain, GPU) on GPUs. Such
a mesh is used unchanged.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from shardwise.check.compiling.environment import choose_target
from shardwise.check.compiling.job import Job
from shardwise.check.compiling.process import COMPILER_ENVIRONMENT, Limits, OnStage, compile_job
from shardwise.check.compiling.result import Compiled, Failure
from shardwise.check.user.entry_point import load_attribute
from shardwise.errors import BadInput
from shardwise.hardware import parse_system

if TYPE_CHECKING:
    import numpy as np

    from shardwise.runtime.program import Program


def compile_function(
    fn: Callable[..., Any],
    *args: Any,
    on: str,
    options: Mapping[str, str] | None = None,
) -> Compiled | Failure:
    """Compile a function for a machine, in this process: functions cannot be sent to another one.

    Args:
        fn: a function, jitted or not; a jitted one keeps its donation and its shardings.
        args: arrays or shapes; their mesh is rebuilt on the devices of the machine.
        on: the machine, `v5e:4x4`; `cpu:8` needs 8 CPU devices in this process.
        options: options of XLA's compiler.

    Raises:
        BadInput: no such machine, or arguments on a mesh of another size.
        MissingExtra: JAX is not installed.
    """
    target = choose_target(parse_system(on))
    # The compiler reads these variables when it is first loaded. Values that the user set stay.
    for name, value in COMPILER_ENVIRONMENT.items():
        os.environ.setdefault(name, value)

    from shardwise.check.compiling.aot import compile_program, target_devices
    from shardwise.check.user.translate import program_on

    def build() -> Program:
        return program_on(fn, args, target_devices(target), target, options or {})

    return compile_program(target, build)


def compile_named(
    name: str,
    args: str = "",
    *,
    on: str,
    folder: str = "",
    options: Mapping[str, str] | None = None,
    limits: Limits | None = None,
    cache: str = "",
    on_stage: OnStage | None = None,
) -> Compiled | Failure:
    """Compile `module:function` for a machine in a separate process.

    Args:
        name: the function.
        args: the function that returns its arguments; `NAME_args` by default.
        on: the machine, `v5e:4x4`.
        folder: searched for the module before Python's path; "" for none.
        options: options of XLA's compiler.
        limits: time and memory that the process may take.
        cache: the folder of the cache, "" for none.
        on_stage: called with the stage and the seconds so far.

    Raises:
        BadInput: no such machine, module or function, or arguments on a mesh of another size.
        MissingExtra: JAX is not installed.
    """
    job = Job(
        builder="shardwise.check.user.api:build",
        arguments={"name": name, "args": args or f"{name}_args", "on": on, "folder": folder},
        target=choose_target(parse_system(on)),
        options=options or {},
        cache=cache,
    )
    return compile_job(job, limits=limits, on_stage=on_stage)


def build(
    devices: np.ndarray[Any, Any], *, name: str, args: str, on: str, folder: str = ""
) -> Program:
    """Load a function and the function that makes its arguments, and build their program.

    Called in the compiling process.
    """
    from shardwise.check.user.translate import program_on

    if folder:  # after the import of JAX, so that no file of the folder shadows its modules
        sys.path.insert(0, folder)

    fn = load_attribute(name)
    if not callable(fn):
        raise BadInput(f"{name} is not a function.")
    try:
        make_arguments = load_attribute(args)
    except BadInput as error:
        raise BadInput(
            *error.problems,
            f"{args} must return the arguments of {name}: write it, or name another function with "
            "--args module:function.",
        ) from None
    needs_devices = _needs_devices(make_arguments, args)
    arguments = make_arguments(devices) if needs_devices else make_arguments()
    if not isinstance(arguments, tuple):
        arguments = (arguments,)
    return program_on(fn, arguments, devices, choose_target(parse_system(on)), {})


def _needs_devices(make_arguments: Any, name: str) -> bool:
    """Whether the function that returns the arguments takes the devices."""
    if not callable(make_arguments):
        raise BadInput(f"{name} is not a function. It must return the arguments when called.")
    required = []
    for parameter in inspect.signature(make_arguments).parameters.values():
        is_positional = parameter.kind in (
            parameter.POSITIONAL_ONLY,
            parameter.POSITIONAL_OR_KEYWORD,
        )
        if is_positional and parameter.default is parameter.empty:
            required.append(parameter.name)
    if required not in ([], ["devices"]):
        raise BadInput(
            f"{name} takes {', '.join(required)}. It may take no argument, or one named devices."
        )
    return bool(required)
