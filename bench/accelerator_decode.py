"""Stage `decode-8b` of `bench/accelerator.py`: decode steps of the engine's programs.

Sequences of a batch have the same number of tokens in the cache. A step reads all weights but the
embedding, of which it takes a row for each sequence, and the keys and values of all tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from accelerator_device import Device, Found
from accelerator_measure import measured_bandwidth
from accelerator_profile import account
from accelerator_train import SIZES, model_of, parameters, size_of

import shardwise as sw
from shardwise.arrays import ceil_div
from shardwise.runtime.compile_cache import kept_programs
from shardwise.runtime.devices import local_devices
from shardwise.runtime.layout.mesh import role_mesh
from shardwise.runtime.serving.engine_state import EngineState, engine_table
from shardwise.runtime.weights.descriptions import describe, init_weights
from shardwise.serve.cache_sizes import block_bytes, forwards_of
from shardwise.serve.programs import Programs
from shardwise.strategy.mesh import Mesh
from shardwise.strategy.serving_layout import ServeLayout
from shardwise.workload import Serve

BATCHES = {False: (1, 4, 16, 64), True: (1, 2, 4)}  # tiny or not
CONTEXT = {False: 2048, True: 64}
STEPS = {False: 50, True: 5}
SHARE = 0.8  # of the memory, for weights and cache
TOKEN_BYTES = 2 * 2 * 128 * 8  # of a layer of the 8B model: keys and values of 8 heads in bf16


@kept_programs()
def decode(device: Device) -> Found:
    """Seconds of a step at each batch, and the share of the time of its bytes."""
    size = size_of("8b", device)
    n_layers = fitting_layers(size, device)
    config = model_of(size, n_layers)
    context = CONTEXT[device.tiny]
    programs, weight_bytes, token_bytes = engine(config, max(BATCHES[device.tiny]), context)
    roofs = {"measured": measured_bandwidth(device)}
    if device.in_catalog:
        chip = device.machine(measured=False).chip
        roofs["catalog"] = (chip.hbm_bytes_per_s or 0.0) / (chip.n_devices or 1)
    rows = []
    for batch in BATCHES[device.tiny]:
        step = step_of(programs, batch, context)
        seconds = step_s(step, STEPS[device.tiny])
        n_bytes = weight_bytes + batch * context * token_bytes
        shares = {name: n_bytes / roof / seconds for name, roof in roofs.items() if roof}
        rows.append(
            {
                "batch": batch,
                "step_s": seconds,
                "bytes": n_bytes,
                "share": shares,
                "planned_s": planned_s(config, batch, device),
                "account": account(step, device, f"decode-{size}-{batch}"),
            }
        )
    return {
        "model": config.name,
        "n_layers": n_layers,
        "of_layers": SIZES[size]["n_layers"],
        "context": context,
        "weight_bytes": weight_bytes,
        "rows": rows,
    }


def planned_s(config: sw.ModelConfig, batch: int, device: Device) -> float | None:
    """Seconds of a step as planned at the catalog's rates; None where the catalog has no such."""
    if not device.in_catalog:
        return None
    job = sw.Serve(context=CONTEXT[device.tiny], batch=batch)
    plan = sw.plan(config, device.machine(measured=False), job)
    return plan.estimate.decode.step_s.expected


def fitting_layers(size: str, device: Device) -> int:
    """The most layers whose weights and cache fit."""
    n_layers = SIZES[size]["n_layers"]
    if device.memory_bytes is None:
        return n_layers
    n_tokens = max(BATCHES[device.tiny]) * CONTEXT[device.tiny]
    room = SHARE * device.memory_bytes
    while n_layers > 1:
        n_bytes = 2 * parameters(model_of(size, n_layers)) + n_layers * n_tokens * TOKEN_BYTES
        if n_bytes <= room:
            break
        n_layers -= 1
    return n_layers


def engine(config: sw.ModelConfig, sequences: int, context: int) -> tuple[Programs, int, float]:
    """Programs on one device with random weights; bytes of weights that a step reads, and of the
    cache for a token.

    Args:
        sequences: at most, of a batch.
        context: tokens of each, at most.
    """
    layout = ServeLayout(mesh=Mesh())
    mesh = role_mesh(layout.sizes, np.array(local_devices()[:1]))
    state = EngineState(
        config=config,
        job=Serve(context=context, weights="bf16", kv="bf16", compute="bf16"),
        layout=layout,
        table=engine_table(layout, mesh),
        batch=sequences,
    )
    make = jax.jit(
        lambda key: state.quantize_weights(init_weights(describe(config), key, jnp.bfloat16))
    )
    weights = make(jax.random.key(0))
    jax.block_until_ready(weights)
    all_bytes = sum(x.nbytes for x in jax.tree.leaves(weights))
    weight_bytes = all_bytes - weights["outer"]["embedding"].nbytes
    (forward,) = forwards_of([state], sequences, context)
    token_bytes = block_bytes([forward]) / forward.block_tokens
    programs = Programs(
        forward=forward,
        weights=weights,
        max_sequences=sequences,
        max_tokens=context,
        max_context=context,
    )
    return programs, weight_bytes, token_bytes


def step_of(programs: Programs, batch: int, context: int) -> Callable[[], Any]:
    """A function that queues a step: a forward pass and the draw of its tokens.

    Args:
        context: tokens of each sequence, the new one included.
    """
    width = int(ceil_div(context, programs.forward.block_tokens))
    slot_B = np.arange(batch, dtype=np.int32)
    vocab = programs.forward.engine.config.vocab
    tokens_B1 = np.random.default_rng(0).integers(0, vocab, (batch, 1))
    arrays: tuple[Any, ...] = (
        tokens_B1.astype(np.int32),  # of many experts
        slot_B,
        np.zeros(batch, bool),  # whether a token is that which was drawn last
        np.full(batch, context - 1, np.int32),  # tokens in the cache
        np.ones(batch, np.int32),  # new tokens
        np.arange(batch * width, dtype=np.int32).reshape(batch, width),
    )

    def step() -> Any:
        programs.perform("forward", False, *arrays)
        return programs.perform("draw", None, slot_B, None, None)

    return step


def step_s(step: Callable[[], Any], n_steps: int) -> float:
    """Seconds of a step of some that are queued, as the engine does."""
    jax.block_until_ready(step())
    jax.block_until_ready(step())
    start = time.perf_counter()
    for _ in range(n_steps):
        drawn = step()
    jax.block_until_ready(drawn)
    return (time.perf_counter() - start) / n_steps
