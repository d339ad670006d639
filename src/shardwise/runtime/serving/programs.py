"""Build two programs of a serving plan's engines: a prefill step and a decode step.

Both are the forward pass that the engine runs, `forward.PagedForward`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import numpy as np

from shardwise.arrays import ceil_div
from shardwise.errors import BadInput, raise_all
from shardwise.hardware.switched import Switched
from shardwise.plan.schema.json_io import decode
from shardwise.plan.schema.serving import ServingPlan
from shardwise.plan.serving.rebuild import rebuild
from shardwise.plan.serving.unserved import unserved
from shardwise.runtime.layout.mesh import arrange, role_mesh
from shardwise.runtime.program import Program
from shardwise.runtime.serving.engine_state import EngineState, engine_table
from shardwise.runtime.serving.forward import PagedForward, block_tokens
from shardwise.runtime.serving.kv_layout import kv_heads, split_tensor
from shardwise.search.serving.candidate import Candidate, Server


def decode_step(devices: np.ndarray[Any, Any], plan: str) -> Program:
    """Build a decode step of a plan: a token, and those drafted, for each sequence of an engine.

    Args:
        devices: all devices of the machine, with the dims that `mesh.arrange` takes.
    """
    deployment = _deployment(plan)
    job = deployment.job
    engine = engine_state(deployment.server, deployment.batch, devices)
    rows = (int(ceil_div(deployment.batch, engine.layout.sizes["expert"])), 1 + job.drafted)
    return _program("decode step", engine, rows, job.context, deployment.batch)


def prefill_step(devices: np.ndarray[Any, Any], plan: str) -> Program:
    """Build a prefill step of a plan: a chunk with all tokens of a prompt, in each pool of engines.

    Its cache is for one sequence of a pool if prefill has engines of its own, otherwise for the
    batch of the decode step.

    Args:
        devices: all devices of the machine, with the dims that `mesh.arrange` takes.
    """
    deployment = _deployment(plan)
    server = deployment.prefill_server or deployment.server
    job = deployment.job
    held = 1 if deployment.prefill_server else deployment.batch
    engine = engine_state(server, held, devices)
    rows = (1, round(job.fresh_tokens))
    return _program("prefill step", engine, rows, job.prompt_tokens, held)


def _program(
    name: str, engine: EngineState, rows: tuple[int, int], length: int, held: int
) -> Program:
    """A pass whose weights have the memory layouts of `engine.formats`.

    Args:
        rows: number of sequences of a pool, and of new tokens of each.
        length: tokens of each sequence after the pass.
        held: number of sequences for which the cache of an engine has room.
    """
    block = block_tokens(engine)
    of_pool = int(ceil_div(held, engine.layout.sizes["expert"]))
    n_blocks = of_pool * int(ceil_div(engine.job.context, block))
    by_layer = engine.splits_stacks
    forward = PagedForward(engine=engine, n_blocks=n_blocks, block_tokens=block, by_layer=by_layer)
    weights = engine.weight_shapes_by_layer() if by_layer else engine.weight_shapes()
    batch = forward.batch_shapes(*rows, int(ceil_div(length, block)))
    args = (weights, forward.cache_shapes(), *batch)
    cache_formats = forward.cache_formats()
    fn = jax.jit(
        forward.function(),
        donate_argnums=(1,),
        in_shardings=(
            None if by_layer else engine.formats(),
            cache_formats,
            *(None for _ in batch),
        ),
        out_shardings=(cache_formats, None),
    )
    return Program(name=name, fn=fn, args=args, mesh=engine.table.mesh.jax_mesh, donate=(1,))


def _deployment(plan: str) -> Candidate:
    """The engines and the job of a plan in JSON."""
    decoded = decode(plan)
    if not isinstance(decoded, ServingPlan):
        raise TypeError("a training plan has no serving steps")
    return rebuild(decoded)[1]


def engine_state(
    server: Server, batch: int, devices: np.ndarray[Any, Any], index: int | None = None
) -> EngineState:
    """Describe the arrays of a plan's engines, with the devices where the placement puts its chips.

    Chips with the same KV heads share the tokens of each block, also where the plan gives each of
    them other sequences: then a sequence may be anywhere in the batch.

    Args:
        server: identical engines on a machine.
        batch: number of sequences in the cache of one engine.
        devices: all devices of the machine, with the dims that `mesh.arrange` takes.
        index: of the engine to describe alone; None for all of the machine.

    Raises:
        BadInput: the runtime does not support the layout; lists all reasons.
    """
    raise_all(BadInput, unserved(server))
    layout = server.layout
    if layout.kv == "batch":
        layout = replace(layout, kv="sequence")
    sizes = layout.sizes
    if isinstance(server.system.topology, Switched):
        # In a switched network the placement describes one engine; each engine gets the next chips.
        engines = devices.reshape(-1)[: layout.mesh.n_chips].reshape(sizes["data"], -1)
        engine_sizes = {**sizes, "data": 1}
        arranged = np.stack(
            [arrange(server.placement, engine_sizes, chips[None, :, None]) for chips in engines]
        )
    else:
        arranged = arrange(server.placement, sizes, devices[..., :1])
    if index is not None:  # `data` is the first of the dims
        arranged = arranged.reshape(sizes["data"], -1)[index]
        layout = replace(layout, mesh=replace(layout.mesh, data=1))
        sizes = layout.sizes
    mesh = split_tensor(role_mesh(sizes, arranged), kv_heads(server.config))
    return EngineState(
        config=server.config,
        job=server.job,
        layout=layout,
        table=engine_table(layout, mesh),
        batch=batch,
    )
