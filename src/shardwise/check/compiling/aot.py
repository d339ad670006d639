"""Ahead-of-time compilation of a program in the current process. Imports JAX."""

from __future__ import annotations

import functools
import gzip
import resource
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import NamedSharding

from shardwise.check.compiling import cache
from shardwise.check.compiling.constraints import sharding_constraints
from shardwise.check.compiling.failures import classify
from shardwise.check.compiling.result import (
    COMPILE_ANYWAY,
    Compiled,
    Failure,
    Memory,
    OutOfMemory,
    Place,
    ResultArray,
)
from shardwise.check.compiling.targets import Target
from shardwise.check.compiling.upcasts import upcast_products
from shardwise.errors import BadInput, ShardwiseError
from shardwise.runtime.compiler_options import typed
from shardwise.runtime.kernels.compute_capability import compiling_for
from shardwise.runtime.program import Program


def target_devices(target: Target) -> np.ndarray[Any, Any]:
    """JAX devices of a target, an array of shape `target.grid`.

    Raises:
        BadInput: the compiler sees another number of devices.
    """
    if target.platform == "cpu":
        devices = list(jax.devices("cpu"))[: target.n_devices]
    else:
        platform = {"tpu": "tpu", "gpu": "cuda"}[target.platform]
        topology = topologies.get_topology_desc(platform=platform, **target.topology)
        devices = sorted(topology.devices, key=_sort_key)
    if len(devices) != target.n_devices:
        raise BadInput(
            f"{target.name} has {target.n_devices} devices, but the compiler sees {len(devices)}."
        )
    grid = np.empty(target.n_devices, dtype=object)
    grid[:] = devices
    return grid.reshape(target.grid)


def compile_program(
    target: Target,
    build: Callable[[], Program],
    *,
    explain: bool = True,
    cache_path: str = "",
    set_stage: Callable[[str], None] = lambda stage: None,
    before_explaining: Callable[[Failure], None] = lambda failure: None,
) -> Compiled | Failure:
    """Build, lower and compile a program, or read it from the cache.

    Args:
        target: the machine to compile for.
        build: returns the program for the target's devices.
        explain: whether to compile a program that does not fit again without the memory limit, to
            show what fills the memory.
        cache_path: the folder of the cache; "" to use none.
        set_stage: called with the name of each stage when it begins.
        before_explaining: called with the failure that a second compile is going to explain.

    Raises:
        ShardwiseError: raised by `build` itself.
    """
    stage = "building"
    try:
        with compiling_for(target.capability):
            program = build()
            options = {**target.options, **program.options}
            stage = "lowering"
            set_stage(stage)
            start = time.perf_counter()
            lowered = lower(program)
        lower_s = time.perf_counter() - start
        stage = "compiling"
        compile_once = functools.partial(
            _compile_cached, lowered, program, target, lower_s, cache_path, set_stage
        )
        compiled = compile_once(options, stage)
    except ShardwiseError:
        raise
    except Exception as error:
        failure = classify(error, stage)
        if not isinstance(failure, OutOfMemory) or target.platform != "tpu" or not explain:
            return failure
        before_explaining(failure)
        try:
            compiled = compile_once({**options, COMPILE_ANYWAY: "true"}, "explaining")
        except Exception:  # that it does not fit is known, whatever the explanation meets
            return failure
        # It may fit after all, if the user gave the chip more memory than the compiler assumes.
        return compiled if compiled.fits else replace(failure, program=compiled)
    if compiled.fits is False and target.memory_bytes:
        return OutOfMemory(
            required=compiled.memory.device_bytes,
            available=int(target.memory_bytes),
            program=compiled,
        )
    return compiled


def _compile_cached(
    lowered: Any,
    program: Program,
    target: Target,
    lower_s: float,
    cache_path: str,
    set_stage: Callable[[str], None],
    options: dict[str, str],
    stage: str,
) -> Compiled:
    key = ""
    if cache_path:
        key = cache_key(lowered, program, target, options)
        cached = cache.read(Path(cache_path), key)
        if isinstance(cached, Compiled):
            return cached
    set_stage(stage)
    compiled = compile_lowered(lowered, program, target, options, lower_s)
    if cache_path:
        cache.write(Path(cache_path), key, compiled)
    return compiled


def lower(program: Program) -> Any:
    """Lower a program; a function that is already jitted keeps its own shardings and donation."""
    if hasattr(program.fn, "lower"):
        return program.fn.lower(*program.args)
    keywords: dict[str, Any] = {"donate_argnums": program.donate}
    if program.out_shardings is not None:
        keywords["out_shardings"] = program.out_shardings
    with jax.set_mesh(program.mesh):
        return jax.jit(program.fn, **keywords).lower(*program.args)


def cache_key(lowered: Any, program: Program, target: Target, options: Mapping[str, str]) -> str:
    """Hash of everything that the compiled program depends on."""
    devices = [(device.id, _sort_key(device)) for device in program.mesh.devices.flat]
    return cache.key_of(
        (
            # With debug info, which contains the name scopes of the compiled program.
            lowered.as_text(debug_info=True),
            program.name,
            repr(target),
            repr(sorted(target.topology.items())),
            repr(list(program.mesh.shape.items())),
            repr(devices),
            repr(sorted(options.items())),
            repr(sorted(cache.versions().items())),
            repr(sorted((name, repr(value)) for name, value in jax.config.values.items())),
            repr(cache.compiler_environment()),
        )
    )


def _sort_key(device: Any) -> tuple[Any, ...]:
    place = _place(device)
    return (place.slice_index, *place.coords, place.core, device.id)


def _place(device: Any) -> Place:
    return Place(
        coords=tuple(getattr(device, "coords", ())),
        core=getattr(device, "core_on_chip", 0),
        slice_index=getattr(device, "slice_index", 0),
    )


def _cost_totals(analysis: Mapping[str, Any]) -> dict[str, float]:
    """Totals of XLA's cost analysis, without values of single operands (`bytes accessed0{}`)."""
    return {name: float(value) for name, value in analysis.items() if "{" not in name}


def _memory_statistics(stats: Any) -> Memory:
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


def _result_arrays(lowered: Any, executable: Any) -> Iterator[ResultArray]:
    """Yield the arrays that a program returns, with their shardings."""
    infos = jax.tree_util.tree_leaves_with_path(lowered.out_info)
    shardings = jax.tree.leaves(executable.output_shardings)
    for (path, info), sharding in zip(infos, shardings, strict=True):
        spec = None
        if isinstance(sharding, NamedSharding):
            axes_by_dim = list(sharding.spec) + [None] * (len(info.shape) - len(sharding.spec))
            spec = tuple(_axes(axes) for axes in axes_by_dim)
        yield ResultArray(
            path=jax.tree_util.keystr(path),
            shape=f"{info.dtype}[{','.join(map(str, info.shape))}]",
            spec=spec,
        )


def _axes(entry: Any) -> tuple[str, ...]:
    """The mesh axes of one entry of a `PartitionSpec`: None, an axis or several."""
    if entry is None:
        return ()
    return (entry,) if isinstance(entry, str) else tuple(entry)


def compile_lowered(
    lowered: Any, program: Program, target: Target, options: dict[str, str], lower_s: float
) -> Compiled:
    """Compile a lowered program, and collect its text and statistics."""
    start = time.perf_counter()
    executable = lowered.compile(compiler_options=typed(options))
    compile_s = time.perf_counter() - start
    has_refs = any(getattr(leaf, "is_ref", False) for leaf in jax.tree.leaves(program.args))
    return Compiled(
        name=program.name,
        target=target,
        mesh=dict(program.mesh.shape),
        places=tuple(_place(device) for device in program.mesh.devices.flat),
        hlo_gz=gzip.compress(executable.as_text().encode(), mtime=0),
        memory=_memory_statistics(executable.memory_analysis()),
        cost=_cost_totals(executable.cost_analysis() or {}),
        options=options,
        versions=cache.versions(),
        lower_s=lower_s,
        compile_s=compile_s,
        rss_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 2**10,
        upcasts=upcast_products(lowered),
        constraints=sharding_constraints(lowered),
        # JAX does not name the results of functions that update arrays in place.
        results=() if has_refs else tuple(_result_arrays(lowered, executable)),
    )
