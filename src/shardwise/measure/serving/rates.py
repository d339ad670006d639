"""Rates of the operations of a forward pass: products, attention, all between, drawing.

Letters of arrays: M rows, I inputs, O outputs, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from shardwise.estimate.elementwise import WIDTHS
from shardwise.estimate.serving.measured_rates import padded_keys
from shardwise.hardware.figure import HEAD_DTYPES, PRODUCT_DTYPES, PRODUCT_ROWS
from shardwise.measure.all_devices import random_numbers
from shardwise.measure.timing import Call, Part
from shardwise.models import ModelConfig
from shardwise.models.count import kv_elements
from shardwise.runtime.dtypes import dtype
from shardwise.runtime.kernels import cpu_rows
from shardwise.runtime.layout.mesh import role_mesh
from shardwise.runtime.layout.sharding import Table
from shardwise.runtime.serving.engine_state import EngineState
from shardwise.runtime.serving.forward import BLOCK_TOKENS, PagedForward
from shardwise.runtime.serving.sampling import Draw, draw
from shardwise.runtime.weights.descriptions import describe, map_infos
from shardwise.strategy.mesh import Mesh
from shardwise.strategy.serving_layout import ServeLayout
from shardwise.workload import Serve

# A call of a pass of (number of sequences, new tokens of each, tokens of each in the cache).
Pass = Callable[[int, int, int], Call]
# Weights of the products of each layer, by name.
Layers: TypeAlias = list[dict[str, cpu_rows.Rows]]

WIDTH, FF = 768, 2048
# Its products are timed: the weights are more than caches hold.
WIDE = ModelConfig.dense(
    n_layers=8, d_model=WIDTH, d_ff=FF, n_heads=12, n_kv_heads=4, d_head=64, vocab=256
)
# Narrow, so that their products cost little beside attention and what each layer costs.
NARROW, DEEP = (
    ModelConfig.dense(
        n_layers=n_layers, d_model=256, d_ff=512, n_heads=8, n_kv_heads=4, d_head=64, vocab=256
    )
    for n_layers in (4, 10)
)
N_BLOCKS = 8  # of operations between products
ROWS = 256  # of the operations between products
SEQUENCES, VOCAB = 16, 32768  # of a draw; an unembedding has the vocabulary too
SHORT, LONG = 128, 1024  # keys of a sequence
WEIGHTS = "bf16"  # of the models
CHUNK = 256  # tokens of a prompt
SHORTEST_S = 1e-6


def measure_rates() -> Iterator[Part[dict[str, float]]]:
    """Measure the operations of a forward pass."""
    for dtype_name in PRODUCT_DTYPES:
        yield product_rates(dtype_name)
    for dtype_name in HEAD_DTYPES:
        yield head_rates(dtype_name)
    yield attention_rates()
    yield activation_rate()
    yield logit_rate()


def product_rates(weights: str) -> Part[dict[str, float]]:
    """FLOP/s of the products of layers, of some rows with weights of a dtype.

    The weights come from memory. Products are those of a layer, some of which need nothing of each
    other: XLA runs them side by side where one alone does not fill the cores.
    """
    layers = layer_weights(WIDE, weights)
    seconds = yield [partial(layer_products, layers, n_rows) for n_rows in PRODUCT_ROWS]
    n_elements = sum(math.prod(w.shape) for layer in layers for w in layer.values())
    return {
        f"products.{weights}_{n_rows}": 2 * n_rows * n_elements / pass_s
        for n_rows, pass_s in zip(PRODUCT_ROWS, seconds, strict=True)
    }


def head_rates(weights: str) -> Part[dict[str, float]]:
    """FLOP/s of one large product, an unembedding, of some rows with weights of a dtype."""
    w = _matrix(weights, (VOCAB, WIDTH), 0)

    def unembed(x_MI: Any, w: cpu_rows.Rows) -> Any:
        return cpu_rows.product("mi,io->mo", x_MI, w)

    inputs = [jnp.ones((n_rows, WIDTH), jnp.float32) for n_rows in PRODUCT_ROWS]
    seconds = yield [partial(_prepared, unembed, x_MI, w) for x_MI in inputs]
    return {
        f"products.{weights}_head_{n_rows}": 2 * n_rows * math.prod(w.shape) / pass_s
        for n_rows, pass_s in zip(PRODUCT_ROWS, seconds, strict=True)
    }


def layer_weights(config: ModelConfig, weights: str) -> Layers:
    """Random weights of the products of a model's layers, in a dtype."""
    (attention, n_layers), *_ = config.attentions
    width, queries = config.d_model, attention.n_heads * attention.d_head
    keys = attention.n_kv_heads * attention.d_head
    hidden = config.d_ff
    shapes = {
        "query": (queries, width),
        "key": (keys, width),
        "value": (keys, width),
        "out": (width, queries),
        "gate": (hidden, width),
        "up": (hidden, width),
        "down": (width, hidden),
    }
    return [
        {
            name: _matrix(weights, shape, len(shapes) * layer + number)
            for number, (name, shape) in enumerate(shapes.items())
        }
        for layer in range(n_layers)
    ]


def layer_products(layers: Layers, n_rows: int) -> Call:
    """A call of the products of all layers, without attention."""

    def chain(x_MI: Any, layers: Layers) -> Any:
        unused = []
        for layer in layers:
            multiply = {name: partial(_multiply, w=w) for name, w in layer.items()}
            unused += [multiply["key"](x_MI), multiply["value"](x_MI)]
            x_MI = x_MI + multiply["out"](multiply["query"](x_MI))
            hidden_MO = jax.nn.silu(multiply["gate"](x_MI)) * multiply["up"](x_MI)
            x_MI = x_MI + multiply["down"](hidden_MO)
        return x_MI, unused

    width = layers[0]["query"].shape[1]
    return _prepared(chain, jnp.ones((n_rows, width), jnp.float32), layers)


def _multiply(x_MI: Any, w: cpu_rows.Rows) -> Any:
    """A product whose result stays small in a chain of them."""
    return 1e-2 * cpu_rows.product("mi,io->mo", x_MI, w)


def _prepared(function: Callable[..., Any], *inputs: Any) -> Call:
    """Compile a function as the engine's programs; return a call of it."""
    run = jax.jit(function, compiler_options=cpu_rows.compiler_options())
    return partial(run.lower(*inputs).compile(), *inputs)


def _matrix(weights: str, shape: tuple[int, int], seed: int) -> cpu_rows.Rows:
    """A random weight, stored by output."""
    values_OI = jnp.asarray(np.random.default_rng(seed).standard_normal(shape, np.float32))
    if weights != "int8":
        return cpu_rows.Rows(values_OI.astype(dtype(weights)))
    return cpu_rows.Rows((10 * values_OI).astype(jnp.int8), jnp.full(shape[0], 0.1))


def attention_rates() -> Part[dict[str, float]]:
    """Rates of attention, and what a layer costs besides its products, from passes of models."""
    passes = {
        "bf16": model_passes(NARROW, "bf16"),
        "fp32": model_passes(NARROW, "fp32"),
        "deep": model_passes(DEEP, "bf16"),
    }
    cases = {
        "one": ("bf16", 1, 1, SHORT - 1),
        "one deep": ("deep", 1, 1, SHORT - 1),
        "fresh": ("bf16", 1, CHUNK, 0),
        "later": ("bf16", 1, CHUNK, LONG - CHUNK),
    }
    for kv in ("bf16", "fp32"):
        cases[f"{kv} short"] = (kv, SEQUENCES, 1, SHORT - 1)
        cases[f"{kv} long"] = (kv, SEQUENCES, 1, LONG - 1)
    calls = [partial(passes[which], *shape) for which, *shape in cases.values()]
    products = partial(layer_products, layer_weights(DEEP, WEIGHTS), 1)
    *seconds, products_s = yield [*calls, products]
    found = dict(zip(cases, seconds, strict=True))

    def beyond_s(case: str, other: str) -> float:
        return max(found[case] - found[other], SHORTEST_S)

    (attention, n_layers), *_ = NARROW.attentions
    pairs = CHUNK * float(padded_keys(LONG) - padded_keys(CHUNK))
    flops = 4 * n_layers * pairs * attention.n_heads * attention.d_head
    n_elements = n_layers * SEQUENCES * (LONG - SHORT) * kv_elements(attention)
    keys_s = beyond_s("bf16 long", "bf16 short")
    # What a pass begins with, and the products and keys of a layer, are no cost of the layer.
    layer_s = beyond_s("one deep", "one") / (DEEP.n_layers - NARROW.n_layers)
    layer_s = min(layer_s, found["one deep"] / DEEP.n_layers)  # whatever a busy machine did
    layer_keys_s = keys_s / n_layers / SEQUENCES * SHORT / (LONG - SHORT)
    return {
        "serving.layer": max(layer_s - products_s / DEEP.n_layers - layer_keys_s, SHORTEST_S),
        "serving.keys": 4 * n_elements / beyond_s("fp32 long", "fp32 short"),
        "serving.keys_bf16": 2 * n_elements / keys_s,
        "serving.attention": flops / beyond_s("later", "fresh"),
    }


def model_passes(config: ModelConfig, kv: str) -> Pass:
    """A function that returns a call of a pass of a model.

    Args:
        kv: dtype of its KV cache.
    """
    state = EngineState(
        config=config,
        job=Serve(context=LONG, weights=WEIGHTS, kv=kv, compute="fp32"),
        layout=ServeLayout(mesh=Mesh()),
        table=Table(rules={}, mesh=role_mesh(Mesh().sizes, np.array(jax.devices()[:1]))),
        batch=1,
    )
    width = LONG // BLOCK_TOKENS
    forward = PagedForward(
        engine=state, n_blocks=SEQUENCES * width, block_tokens=BLOCK_TOKENS, by_layer=True
    )
    # Numbers of NumPy: JAX would compile a program for each shape.
    numbers = map_infos(lambda info: random_numbers(info.shape, dtype(WEIGHTS)), describe(config))
    weights = forward.weights_by_layer(numbers)
    run = jax.jit(
        forward.function(), donate_argnums=1, compiler_options=cpu_rows.compiler_options()
    )
    cache = forward.init_cache()

    def pass_of(n: int, n_new: int, past: int) -> Call:
        tokens_BT = np.zeros((n, n_new), np.int32)
        past_B = np.full(n, past, np.int32)
        new_B = np.full(n, n_new, np.int32)
        tables_BM = np.arange(n * width, dtype=np.int32).reshape(n, width)

        def once() -> Any:
            nonlocal cache
            cache, logits_BV = run(weights, cache, tokens_BT, past_B, new_B, tables_BM)
            return logits_BV

        return once

    return pass_of


def activation_rate() -> Part[dict[str, float]]:
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

    x_MI = jnp.ones((ROWS, WIDTH), jnp.float32)
    g_MO = jnp.ones((ROWS, FF), jnp.float32)
    (seconds,) = yield [partial(_prepared, between, x_MI, g_MO, g_MO)]
    elements = WIDTHS["D"] * WIDTH + WIDTHS["F"] * FF
    return {"serving.activations": 4 * ROWS * N_BLOCKS * elements / seconds}


def _norm(x_MI: Any) -> Any:
    return x_MI * lax.rsqrt(jnp.mean(x_MI * x_MI, axis=-1, keepdims=True) + 1e-5)


def logit_rate() -> Part[dict[str, float]]:
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
    logits_BV = jax.random.normal(jax.random.key(0), (SEQUENCES, VOCAB))
    (seconds,) = yield [partial(_prepared, draw, logits_BV, how)]
    return {"serving.logits": 4 * SEQUENCES * VOCAB / seconds}
