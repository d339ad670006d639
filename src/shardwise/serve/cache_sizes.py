"""Sizes of an engine's cache, on chips and in host memory."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax

from shardwise import units
from shardwise.arrays import ceil_div
from shardwise.errors import BadInput
from shardwise.runtime.processes.consensus import least_of_all
from shardwise.runtime.serving.engine_state import EngineState
from shardwise.runtime.serving.forward import PagedForward, block_tokens

MEMORY_SHARE = 0.9  # of an accelerator's memory, for weights and cache


def block_bytes(forwards: Sequence[PagedForward]) -> int:
    """Memory of a chip for a block of each model."""
    n_bytes = 0
    for forward in forwards:
        one_block = replace(forward, n_blocks=1, by_layer=False)
        for x in jax.tree.leaves(one_block.cache_shapes()):
            n_bytes += math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
    return n_bytes


def host_blocks(host_bytes: float, forwards: Sequence[PagedForward]) -> int:
    """Blocks for which each process has host memory.

    Raises:
        BadInput: it has less than for one, or the host has less.
    """
    devices = forwards[0].engine.table.mesh.jax_mesh.devices.flat
    n_local = sum(device.process_index == jax.process_index() for device in devices)
    bytes_of_block = block_bytes(forwards) * n_local
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if host_bytes and not bytes_of_block <= host_bytes <= there:
        raise BadInput(
            f"--host-cache {units.show_bytes(host_bytes)} is not between a block of "
            f"{forwards[0].block_tokens} tokens, {units.show_bytes(bytes_of_block)}, and the "
            f"memory of this machine, {units.show_bytes(there)}."
        )
    return int(host_bytes // bytes_of_block)


def forwards_of(states: Sequence[EngineState], sequences: int, context: int) -> list[PagedForward]:
    """The forward pass of each model, with caches of as many blocks as are useful and fit.

    Args:
        states: the engine, and that of the model that drafts.
        sequences: the most sequences of a pool.

    Raises:
        BadInput: the longest sequence does not fit.
    """
    per_block = block_tokens(states[0])
    forwards = [PagedForward(engine=s, n_blocks=1, block_tokens=per_block) for s in states]
    bytes_of_block = block_bytes(forwards)
    wanted = sequences * int(ceil_div(context, per_block)) + 1
    memory = _local_device(states[0]).memory_stats()
    n_blocks = wanted
    if memory:
        free_bytes = memory["bytes_limit"] * MEMORY_SHARE - memory["bytes_in_use"]
        n_blocks = max(1, least_of_all(int(free_bytes / bytes_of_block)))
    if n_blocks * per_block < context:
        raise BadInput(
            f"a sequence of {context:,} tokens does not fit: beside the weights there is memory "
            f"for {n_blocks * per_block:,} tokens ({units.show_bytes(bytes_of_block)} for "
            f"{per_block}). Lower --context, or use --kv-dtype int8."
        )
    made = []
    for one_block in forwards:
        mesh = one_block.engine.table.mesh
        is_one_cpu = mesh.platform == "cpu" and mesh.jax_mesh.size == 1
        by_layer = is_one_cpu or one_block.engine.splits_stacks
        made.append(replace(one_block, n_blocks=n_blocks, by_layer=by_layer))
    return made


def _local_device(state: EngineState) -> Any:
    """A device of an engine that this process has."""
    devices = state.table.mesh.jax_mesh.devices.flat
    return next(device for device in devices if device.process_index == jax.process_index())
