"""Anybody's function through the compiler: from Python, and from the command line by its name.

From Python, `check_function(train_step, state, batch, on="v5e:4x4")`: the arguments are arrays or
`jax.ShapeDtypeStruct`s, on a mesh of CPU devices, on an `AbstractMesh`, or on none. Nothing runs.

On the command line a function is named `module:function`, and its arguments come from a second
function, `module:function_args` where no other is named. That one takes nothing and returns what
the function is called with: a tuple of arguments, or the only one.

    def train_step_args():
        mesh = jax.sharding.AbstractMesh((4, 4), ("data", "model"))
        return state_shapes(mesh), batch_shapes(mesh)

Where the devices themselves are wanted, it takes one argument named `devices`, a NumPy array of
them: by slice, by coordinates of the torus, by core of a chip; by domain and GPU on GPUs. A mesh of
one's own is made of them, and then it is kept as it is.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from shardwise.check.compiling.environment import choose
from shardwise.check.compiling.job import Job
from shardwise.check.compiling.process import QUIET, Limits, OnStage, compile_job
from shardwise.check.compiling.result import Compiled, Failure
from shardwise.check.user.entry_point import find
from shardwise.errors import BadInput
from shardwise.hardware import parse_system

if TYPE_CHECKING:
    import numpy as np

    from shardwise.runtime.program import Program


def check_function(
    fn: Callable[..., Any],
    *args: Any,
    on: str,
    options: Mapping[str, str] | None = None,
) -> Compiled | Failure:
    """Compile a function for a machine, in this process, since a function cannot leave it.

    Args:
        fn: a function, jitted or not; a jitted one keeps its donation and its shardings.
        args: arrays or shapes; the mesh they lie on gets the devices of the machine.
        on: the machine, `v5e:4x4`; `cpu:8` needs 8 CPU devices in this process.
        options: options of XLA's compiler.

    Raises:
        BadInput: no such machine, or arguments on a mesh of another size.
        MissingExtra: JAX is not installed.
    """
    target = choose(parse_system(on))
    # They matter when the compiler is loaded, the first time; a user's own values stay.
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)

    from shardwise.check.compiling.aot import compile_program, devices_of
    from shardwise.check.user.translate import program_on

    def build(devices: np.ndarray[Any, Any]) -> Program:
        return program_on(fn, args, devices, target, options or {})

    return compile_program(target, lambda: build(devices_of(target)))


def check_named(
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
    """Compile `module:function` for a machine, in a process of its own.

    Args:
        name: the function.
        args: the function that gives its arguments; `NAME_args` where it is empty.
        on: the machine, `v5e:4x4`.
        folder: where the module is looked for first; empty for where Python looks.
        options: options of XLA's compiler.
        limits: what the process may take.
        cache: the folder of the cache, empty for none.
        on_stage: told the stage and the seconds so far.

    Raises:
        BadInput: no such machine, module or function, or arguments on a mesh of another size.
        MissingExtra: JAX is not installed.
    """
    job = Job(
        builder="shardwise.check.user.api:build",
        arguments={"name": name, "args": args or f"{name}_args", "on": on, "folder": folder},
        target=choose(parse_system(on)),
        options=options or {},
        cache=cache,
    )
    return compile_job(job, limits=limits, on_stage=on_stage)


def build(
    devices: np.ndarray[Any, Any], *, name: str, args: str, on: str, folder: str = ""
) -> Program:
    """The program that two names stand for; called where it is compiled."""
    from shardwise.check.user.translate import program_on

    if folder:  # after JAX has been imported, so that no file of the folder can take its modules
        sys.path.insert(0, folder)

    fn = find(name)
    if not callable(fn):
        raise BadInput(f"{name} is no function.")
    try:
        give = find(args)
    except BadInput as error:
        raise BadInput(
            *error.problems,
            f"{args} gives the arguments of {name}: a function that returns them. "
            "Write it, or name another with --args module:function.",
        ) from None
    given = give(devices) if _wants_devices(give, args) else give()
    arguments = given if isinstance(given, tuple) else (given,)
    return program_on(fn, arguments, devices, choose(parse_system(on)), {})


def _wants_devices(give: Any, name: str) -> bool:
    """Whether the function that gives the arguments takes the devices."""
    if not callable(give):
        raise BadInput(f"{name} is no function. It has to return the arguments when it is called.")
    needed = [
        parameter.name
        for parameter in inspect.signature(give).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    if needed not in ([], ["devices"]):
        raise BadInput(
            f"{name} takes {', '.join(needed)}. It may take nothing, or one argument: devices."
        )
    return bool(needed)
