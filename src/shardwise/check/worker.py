"""The process of one compile: `python -m shardwise.check.worker FOLDER`.

It reads `job.json`, says in `stage` what it is doing, and leaves `result.json`. The environment was
set by `compile.py`, before JAX is imported here.
"""

from __future__ import annotations

import gzip
import importlib
import importlib.metadata
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies

from shardwise.check import cache
from shardwise.check.failures import classify
from shardwise.check.job import RESULT, STAGE, Job, read_job
from shardwise.check.result import (
    COMPILE_ANYWAY,
    Compiled,
    Failure,
    Memory,
    OutOfMemory,
    Place,
    Refused,
    encode,
)
from shardwise.check.targets import Target
from shardwise.errors import BadInput, ShardwiseError
from shardwise.runtime.program import Program

# Packages whose versions say which compiler it was.
_PACKAGES = ("jax", "jaxlib", "libtpu", "jax-cuda13-plugin", "jax-cuda12-plugin")

# Settings of the user's that the compilers read.
_ENVIRONMENT = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")


def main(folder: Path) -> None:
    """Do the job in `folder`. Every failure that has words becomes the result."""
    stage = "starting"

    def say(now: str) -> None:
        nonlocal stage
        stage = now
        (folder / STAGE).write_text(now)

    result: Compiled | Failure | Refused
    try:
        result = compile_job(read_job(folder), say)
    except ShardwiseError as error:
        result = Refused(error=type(error).__name__, problems=error.problems)
    except Exception as error:
        result = classify(error, stage)
    part = folder / f"{RESULT}.part"
    part.write_bytes(encode(result))
    part.rename(folder / RESULT)


def compile_job(job: Job, say: Callable[[str], None]) -> Compiled | Failure:
    """Build, lower and compile; or take the same program from the cache."""
    devices = devices_of(job.target)
    say("building")
    program: Program = find(job.builder)(devices, **job.arguments)
    options = {**job.target.options, **program.options, **job.options}
    say("lowering")
    start = time.perf_counter()
    lowered = _lower(program)
    lower_s = time.perf_counter() - start

    def compiled(options: dict[str, str], stage: str) -> Compiled:
        key = _key(lowered, program, job.target, options) if job.cache else ""
        if job.cache and (kept := cache.read(Path(job.cache), key)):
            return kept
        say(stage)
        made = _compile(lowered, program, job.target, options, lower_s)
        if job.cache:
            cache.write(Path(job.cache), key, made)
        return made

    try:
        found = compiled(options, "compiling")
    except Exception as error:
        failure = classify(error, "compiling")
        if not isinstance(failure, OutOfMemory) or job.target.platform != "tpu" or not job.explain:
            return failure
        over = compiled({**options, COMPILE_ANYWAY: "true"}, "explaining")
        # It fits all the same where the user gave the chip more memory than it has.
        return over if over.fits else replace(failure, program=over)
    if found.fits is False and job.target.memory_bytes:
        available = int(job.target.memory_bytes)
        return OutOfMemory(required=found.memory.needed, available=available, program=found)
    return found


def _compile(
    lowered: Any, program: Program, target: Target, options: dict[str, str], lower_s: float
) -> Compiled:
    start = time.perf_counter()
    executable = lowered.compile(compiler_options=options or None)
    compile_s = time.perf_counter() - start
    return Compiled(
        name=program.name,
        target=target,
        mesh=dict(program.mesh.shape),
        places=tuple(_place(device) for device in program.mesh.devices.flat),
        hlo_gz=gzip.compress(executable.as_text().encode(), mtime=0),
        memory=_memory(executable.memory_analysis()),
        cost=_cost(executable.cost_analysis() or {}),
        options=options,
        versions=versions(),
        lower_s=lower_s,
        compile_s=compile_s,
        rss_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 2**10,
    )


def devices_of(target: Target) -> np.ndarray[Any, Any]:
    """The devices of a target in the shape of its grid: by slice, coordinates and core."""
    if target.platform == "cpu":
        devices = list(jax.devices("cpu"))[: target.n_devices]
    else:
        platform = {"tpu": "tpu", "gpu": "cuda"}[target.platform]
        found = topologies.get_topology_desc(platform=platform, **target.topology).devices
        devices = sorted(found, key=_order)
    if len(devices) != target.n_devices:
        raise BadInput(
            f"{target.name} has {target.n_devices} devices, and the compiler gives {len(devices)}."
        )
    grid = np.empty(target.n_devices, dtype=object)
    grid[:] = devices
    return grid.reshape(target.grid)


def find(name: str) -> Any:
    """The attribute that `module:attribute` names.

    Raises:
        BadInput: no such module or attribute.
    """
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise BadInput(f'"{name}" names no function. Write module:function.')
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and (module == error.name or module.startswith(f"{error.name}.")):
            raise BadInput(f'no module "{error.name}" to be found ({name}).') from None
        raise
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise BadInput(f'module "{module}" has no "{attribute}".')
        found = getattr(found, part)
    return found


def _lower(program: Program) -> Any:
    keywords: dict[str, Any] = {"donate_argnums": program.donate}
    if program.out_shardings is not None:
        keywords["out_shardings"] = program.out_shardings
    with program.mesh:
        return jax.jit(program.fn, **keywords).lower(*program.args)


def _key(lowered: Any, program: Program, target: Target, options: Mapping[str, str]) -> str:
    """Everything that decides what the compiler makes of it."""
    devices = [(d.id, _order(d)) for d in program.mesh.devices.flat]
    return cache.key_of(
        (
            # With its locations: names of scopes live there, and reach the compiled program.
            lowered.as_text(debug_info=True),
            program.name,
            repr(target),
            repr(sorted(target.topology.items())),
            repr(list(program.mesh.shape.items())),
            repr(devices),
            repr(sorted(options.items())),
            repr(sorted(versions().items())),
            repr(sorted((name, repr(value)) for name, value in jax.config.values.items())),
            repr([os.environ.get(name) for name in _ENVIRONMENT]),
        )
    )


def _order(device: Any) -> tuple[Any, ...]:
    place = _place(device)
    return (place.slice_index, *place.coords, place.core, device.id)


def _place(device: Any) -> Place:
    return Place(
        coords=tuple(getattr(device, "coords", ())),
        core=getattr(device, "core_on_chip", 0),
        slice_index=getattr(device, "slice_index", 0),
    )


def _cost(analysis: Mapping[str, Any]) -> dict[str, float]:
    """The totals; figures of single operands carry braces in their names."""
    return {name: float(value) for name, value in analysis.items() if "{" not in name}


def _memory(stats: Any) -> Memory:
    return Memory(
        arguments=stats.argument_size_in_bytes,
        output=stats.output_size_in_bytes,
        alias=stats.alias_size_in_bytes,
        temporaries=stats.temp_size_in_bytes,
        peak=stats.peak_memory_in_bytes,
        code=stats.generated_code_size_in_bytes,
        host_arguments=stats.host_argument_size_in_bytes,
        host_output=stats.host_output_size_in_bytes,
        host_alias=stats.host_alias_size_in_bytes,
        host_temporaries=stats.host_temp_size_in_bytes,
    )


def versions() -> dict[str, str]:
    """Versions of what compiles, those that are installed."""
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]))
