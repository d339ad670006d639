"""Rates of the operations of a forward pass: products, attention, all between, drawing.

Letters of arrays: M rows, I inputs, O outputs, V vocabulary.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shardwise.estimate.elementwise import WIDTHS
from shardwise.estimate.serving.measured_rates import padded_keys
from shardwise.hardware.figure import PRODUCT_DTYPES, PRODUCT_ROWS
from shardwise.models import ModelConfig
from shardwise.models.count import kv_elements
from shardwise.runtime.devices import cpu_devices
from shardwise.runtime.dtypes import dtype
from shardwise.runtime.kernels import cpu_rows
from shardwise.runtime.layout.mesh import role_mesh
from shardwise.runtime.layout.sharding import Table
from shardwise.runtime.serving.engine_state import EngineState
from shardwise.runtime.serving.forward import BLOCK_TOKENS, PagedForward
from shardwise.runtime.serving.sampling import Draw, draw
from shardwise.runtime.weights.descriptions import describe, init_weights
from shardwise.strategy.mesh import Mesh
from shardwise.strategy.serving_layout import ServeLayout
from shardwise.workload import Serve

# Seconds of (number of sequences, new tokens of each, tokens of each in the cache).
Pass = Callable[[int, int, int], float]

N_TRIALS = 9
TRIAL_S = 0.03  # a trial repeats the operation for at least this long
N_BLOCKS, WIDTH, FF = 8, 768, 3072  # of a chain of MLPs: more than caches hold
SHAPES = ((FF, WIDTH), (WIDTH, FF))  # of its weights, stored by output
ROWS = 256  # of the operations between products
SEQUENCES, VOCAB = 16, 32768  # of a draw
# Narrow, so that its weights cost little beside attention and what each layer costs.
NARROW = ModelConfig.dense(
    n_layers=4, d_model=64, d_ff=64, n_heads=8, n_kv_heads=4, d_head=64, vocab=256
)
SHORT, LONG = 128, 1024  # keys of a sequence
CHUNK = 256  # tokens of a prompt


def measure_rates() -> dict[str, float]:
    """Measure the operations of a forward pass."""
    cpu_devices(1)
    rates = {
        f"products.{name}_{rows}": product_flops_per_s(name, rows)
        for name in PRODUCT_DTYPES
        for rows in PRODUCT_ROWS
    }
    return {
        **rates,
        **attention_rates(),
        "serving.activations": activation_bytes_per_s(),
        "serving.logits": logit_bytes_per_s(),
    }


def product_flops_per_s(weights: str, rows: int) -> float:
    """FLOP/s of products of `rows` rows with weights of a dtype, which come from memory."""
    matrices = [_matrix(weights, shape, i) for i in range(N_BLOCKS) for shape in SHAPES]

    def chain(x_MI: Any, matrices: list[cpu_rows.Rows]) -> Any:
        for w in matrices:
            x_MI = 1e-2 * cpu_rows.product("mi,io->mo", x_MI, w)
        return x_MI

    run = jax.jit(chain, compiler_options=cpu_rows.compiler_options())
    x_MI = jnp.ones((rows, WIDTH), jnp.float32)
    seconds = median_s(lambda: run(x_MI, matrices))
    return 2 * rows * len(matrices) * WIDTH * FF / seconds


def _matrix(weights: str, shape: tuple[int, int], seed: int) -> cpu_rows.Rows:
    """A random weight, stored by output."""
    values_OI = jax.random.normal(jax.random.key(seed), shape, jnp.float32)
    if weights != "int8":
        return cpu_rows.Rows(values_OI.astype(dtype(weights)))
    return cpu_rows.Rows((10 * values_OI).astype(jnp.int8), jnp.full(shape[0], 0.1))


def attention_rates() -> dict[str, float]:
    """Rates of attention, and what a layer costs besides, from passes of a narrow model."""
    run = narrow_passes("bf16")
    (attention, n_layers), *_ = NARROW.attentions
    few_s = run(1, 1, SHORT - 1)
    fresh_s = run(1, CHUNK, 0)
    later_s = run(1, CHUNK, LONG - CHUNK)
    pairs = CHUNK * float(padded_keys(LONG) - padded_keys(CHUNK))
    flops = 4 * n_layers * pairs * attention.n_heads * attention.d_head
    return {
        "serving.layer": few_s / n_layers,
        "serving.keys": key_bytes_per_s(narrow_passes("fp32"), 4),
        "serving.keys_bf16": key_bytes_per_s(run, 2),
        "serving.attention": flops / max(later_s - fresh_s, 1e-6),
    }


def key_bytes_per_s(run: Pass, element_bytes: int) -> float:
    """Rate at which decode steps read cached keys and values."""
    (attention, n_layers), *_ = NARROW.attentions
    n_elements = n_layers * SEQUENCES * (LONG - SHORT) * kv_elements(attention)
    seconds = run(SEQUENCES, 1, LONG - 1) - run(SEQUENCES, 1, SHORT - 1)
    return element_bytes * n_elements / max(seconds, 1e-6)


def narrow_passes(kv: str) -> Pass:
    """A function that returns the seconds of a pass of the narrow model.

    Args:
        kv: dtype of its KV cache.
    """
    state = EngineState(
        config=NARROW,
        job=Serve(context=LONG, weights="fp32", kv=kv, compute="fp32"),
        layout=ServeLayout(mesh=Mesh()),
        table=Table(rules={}, mesh=role_mesh(Mesh().sizes, np.array(jax.devices()[:1]))),
        batch=1,
    )
    width = LONG // BLOCK_TOKENS
    forward = PagedForward(
        engine=state, n_blocks=SEQUENCES * width, block_tokens=BLOCK_TOKENS, by_layer=True
    )
    weights = forward.weights_by_layer(
        init_weights(describe(NARROW), jax.random.key(0), jnp.float32)
    )
    run = jax.jit(
        forward.function(), donate_argnums=1, compiler_options=cpu_rows.compiler_options()
    )
    cache = forward.init_cache()

    def pass_s(n: int, n_new: int, past: int) -> float:
        tokens_BT = np.zeros((n, n_new), np.int32)
        past_B = np.full(n, past, np.int32)
        new_B = np.full(n, n_new, np.int32)
        tables_BM = np.arange(n * width, dtype=np.int32).reshape(n, width)

        def once() -> Any:
            nonlocal cache
            cache, logits_BV = run(weights, cache, tokens_BT, past_B, new_B, tables_BM)
            return logits_BV

        return median_s(once)

    return pass_s


def activation_bytes_per_s() -> float:
    """Rate of norms, residual sums and gates between products, in bytes of `WIDTHS`."""

    def between(x_MI: Any, g_MO: Any, u_MO: Any) -> Any:
        for _ in range(N_BLOCKS):
            n_MI = _norm(lax.optimization_barrier(x_MI))
            x_MI = x_MI + lax.optimization_barrier(n_MI)
            n_MI = _norm(lax.optimization_barrier(x_MI))
            x_MI = x_MI + lax.optimization_barrier(n_MI)
            gated_MO = lax.optimization_barrier(jax.nn.silu(g_MO) * u_MO)
            g_MO = u_MO
            u_MO = gated_MO
        return x_MI, u_MO

    run = jax.jit(between, compiler_options=cpu_rows.compiler_options())
    x_MI = jnp.ones((ROWS, WIDTH), jnp.float32)
    g_MO = jnp.ones((ROWS, FF), jnp.float32)
    seconds = median_s(lambda: run(x_MI, g_MO, g_MO))
    elements = WIDTHS["D"] * WIDTH + WIDTHS["F"] * FF
    return 4 * ROWS * N_BLOCKS * elements / seconds


def _norm(x_MI: Any) -> Any:
    return x_MI * lax.rsqrt(jnp.mean(x_MI * x_MI, axis=-1, keepdims=True) + 1e-5)


def logit_bytes_per_s() -> float:
    """Rate of drawing tokens at temperature 1, in bytes of logits."""
    ones_B = jnp.ones(SEQUENCES, jnp.float32)
    zeros_B = jnp.zeros(SEQUENCES, jnp.int32)
    how = Draw(
        temperature_B=ones_B,
        top_k_B=zeros_B,
        top_p_B=ones_B,
        min_p_B=0 * ones_B,
        seed_B=zeros_B.astype(jnp.uint32),
        position_B=zeros_B,
    )
    run = jax.jit(draw)
    logits_BV = jax.random.normal(jax.random.key(0), (SEQUENCES, VOCAB))
    seconds = median_s(lambda: run(logits_BV, how))
    return 4 * SEQUENCES * VOCAB / seconds


def median_s(call: Callable[[], Any]) -> float:
    """Median of the mean seconds of a call in some trials."""
    jax.block_until_ready(call())
    trials = []
    for _ in range(N_TRIALS):
        n_calls = 0
        start_s = time.perf_counter()
        while (elapsed_s := time.perf_counter() - start_s) < TRIAL_S or not n_calls:
            jax.block_until_ready(call())
            n_calls += 1
        trials.append(elapsed_s / n_calls)
    return statistics.median(trials)
