"""Sizes of an engine's cache, on chips and in host memory."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace

import jax

from shardwise import units
from shardwise.errors import BadInput
from shardwise.runtime.serving.forward import PagedForward


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
