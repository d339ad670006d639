"""Compile a user's function for a machine, without running it.

From Python, `compile_function(train_step, state, batch, on="v5e:4x4")` compiles it for arguments
that are arrays or `jax.ShapeDtypeStruct`s. They are sharded over a mesh of CPU devices or over an
`AbstractMesh`, or not sharded.

From the command line, `module:function` or `file.py:function` names the function. A second
function, by default `module:function_args`, returns its arguments: a tuple, or the argument itself
if there is only one. It may yield them instead, within the contexts that the function needs.

    def train_step_args():
        mesh = jax.make_mesh((4, 4), ("data", "model"))
        with jax.set_mesh(mesh):
            yield state_shapes(mesh), batch_shapes(mesh)

JAX shows both functions the machine's devices. The second one takes no arguments, or one named
`devices`: a NumPy array with axes (slice, torus axes, core of the chip) on TPUs and (domain, GPU)
on GPUs.
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

# What JAX says of a program that is run on the devices of a topology.
_COMPILE_ONLY = ("compile-only client", "'Executable' object has no attribute 'local_devices'")


def compile_function(
    fn: Callable[..., Any],
    *args: Any,
    on: str,
    options: Mapping[str, str] | None = None,
) -> Compiled | Failure:
    """Compile a function for a machine.

    It is compiled in this process, because a function cannot be sent to another process.

    Args:
        fn: a function, jitted or not; a jitted one keeps its donation and its shardings.
        args: arrays or shapes. Their mesh is rebuilt with the devices of the machine.
        on: the machine, such as `v5e:4x4`; `cpu:8` needs 8 CPU devices in this process.
        options: options of XLA's compiler.

    Raises:
        BadInput: the machine does not exist, or the mesh of the arguments has another size.
        MissingExtra: JAX is not installed.
    """
    target = choose_target(parse_system(on))
    # The compiler reads these variables when it is first loaded. Variables that the user has set
    # are not changed.
    for name, value in COMPILER_ENVIRONMENT.items():
        os.environ.setdefault(name, value)

    from shardwise.check.compiling.aot import compile_program, target_devices
    from shardwise.check.user.translate import program_on

    def build_program() -> Program:
        return program_on(fn, args, target_devices(target), target, options or {})

    return compile_program(target, build_program)


def compile_named(
    name: str,
    args_function: str = "",
    *,
    on: str,
    import_folder: str = "",
    options: Mapping[str, str] | None = None,
    limits: Limits | None = None,
    cache_path: str = "",
    on_stage: OnStage | None = None,
) -> Compiled | Failure:
    """Compile `module:function` for a machine in a separate process.

    Args:
        name: name of the function, `module:function`.
        args_function: name of the function that returns its arguments; `NAME_args` by default.
        on: the machine, such as `v5e:4x4`.
        import_folder: a folder to search for the module before Python's path; "" for none.
        options: options of XLA's compiler.
        limits: limits of the time and memory that the process may use.
        cache_path: the folder of the cache; "" to use none.
        on_stage: called with the stage of the compile and the seconds since its start.

    Raises:
        BadInput: the machine, module or function does not exist, or the mesh of the arguments has
            another size than the machine.
        MissingExtra: JAX is not installed.
    """
    job = Job(
        builder="shardwise.check.user.api:build_named",
        arguments={
            "name": name,
            "args_function": args_function or f"{name}_args",
            "machine": on,
            "import_folder": import_folder,
        },
        target=choose_target(parse_system(on)),
        options=options or {},
        cache_path=cache_path,
    )
    return compile_job(job, limits=limits, on_stage=on_stage)


def build_named(
    devices: np.ndarray[Any, Any],
    *,
    name: str,
    args_function: str,
    machine: str,
    import_folder: str = "",
) -> Program:
    """Load a function, call `args_function` for its arguments, and build the program.

    This is the builder of the job of `compile_named`, which runs in the compiling process.

    Args:
        devices: JAX devices of the machine, in the shape of the target's grid.
        name, args_function, import_folder: see `compile_named`.
        machine: the machine to compile for.
    """
    from shardwise.check.user.machine_view import show_machine
    from shardwise.check.user.translate import program_on

    if import_folder:  # after the import of JAX, so that no file in it shadows JAX's modules
        sys.path.insert(0, import_folder)

    target = choose_target(parse_system(machine))
    with show_machine(devices, target.platform):
        try:
            fn = load_attribute(name)
        except Exception as error:
            raise _in_words(error, name.rpartition(":")[0], machine) from None
        if not callable(fn):
            raise BadInput(f"{name} is not a function.")
        try:
            make_arguments = load_attribute(args_function)
        except BadInput as error:
            raise BadInput(
                *error.problems,
                f"{args_function} must return the arguments of {name}: write it, or name another "
                "function with --args module:function.",
            ) from None
        needs_devices = _needs_devices(make_arguments, args_function)
        try:
            arguments = make_arguments(devices) if needs_devices else make_arguments()
            context = arguments if inspect.isgenerator(arguments) else None
            if context:  # its `with` blocks last until the function is lowered
                arguments = next(context)
        except StopIteration:
            raise BadInput(f"{args_function} yields nothing. Yield the arguments.") from None
        except Exception as error:
            raise _in_words(error, args_function, machine) from None
    if arguments is None:
        raise BadInput(f"{args_function} returns nothing. Return the arguments.")
    if not isinstance(arguments, tuple):
        arguments = (arguments,)
    return program_on(fn, arguments, devices, target, {}, context)


def _in_words(error: Exception, name: str, machine: str) -> Exception:
    """The error of a module or of a function that returns arguments; in words, if it ran JAX."""
    if not any(words in str(error) for words in _COMPILE_ONLY):
        return error
    return BadInput(
        f"{name} computes on the devices of {machine}, which compile but do not run. Take shapes "
        "instead of arrays: jax.eval_shape(init, ...) or jax.ShapeDtypeStruct, with their "
        "shardings."
    )


def _needs_devices(make_arguments: Any, name: str) -> bool:
    """Whether the function that returns the arguments takes the argument `devices`.

    Raises:
        BadInput: it is not a function, or it requires other arguments.
    """
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
