"""Greedy answers of small engines on eight virtual CPU devices, held against a plain forward pass.

`python -m tests.unit.runtime.scripts serving NAMES` reads prompts of unequal lengths into an engine
in two passes, generates a few tokens, and prints for each engine how far its logits lie from those
of `tests.oracle.forward` over the same text, as one JSON document.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shardwise.models import ModelConfig
from shardwise.runtime.layout.mesh import role_mesh
from shardwise.runtime.layout.sharding import Table
from shardwise.runtime.serving.decode import DecodeStep
from shardwise.runtime.serving.engine_state import EngineState
from shardwise.runtime.serving.kv_layout import kv_heads, split_tensor
from shardwise.runtime.serving.prefill import PrefillStep
from shardwise.runtime.weights.descriptions import describe, init_weights
from shardwise.runtime.weights.quantized import Grouped, dequantized
from shardwise.strategy.mesh import Mesh
from shardwise.strategy.serving_layout import ServeLayout, serve_rules
from shardwise.workload import Serve
from tests.oracle import forward

BATCH, CONTEXT, GENERATED, VOCAB = 4, 32, 6, 256
LENGTHS = (5, 12, 1, 9)  # of the prompts of an engine
FP32 = {"weights": "fp32", "kv": "fp32", "compute": "fp32"}
MODEL = ModelConfig.dense(n_layers=2, d_model=64, d_ff=128, n_heads=8, n_kv_heads=2, vocab=VOCAB)
WINDOW = ModelConfig.dense(
    n_layers=2, d_model=64, d_ff=128, n_heads=8, n_kv_heads=2, vocab=VOCAB, window=8
)
# name -> (model, mesh, way of the cache, dtypes)
ENGINES: dict[str, tuple[ModelConfig, Mesh, str, dict[str, str]]] = {
    "one": (MODEL, Mesh(), "copied", FP32),
    "tensor 2": (MODEL, Mesh(tensor=2), "copied", FP32),
    "tensor 8, copied": (MODEL, Mesh(tensor=8), "copied", FP32),
    "tensor 8, batch": (MODEL, Mesh(tensor=8), "batch", FP32),
    "two engines, tensor 4, batch": (MODEL, Mesh(data=2, tensor=4), "batch", FP32),
    "window, tensor 8, sequence": (WINDOW, Mesh(tensor=8), "sequence", FP32),
    "int8 weights": (MODEL, Mesh(), "copied", FP32 | {"weights": "int8"}),
    "int8 on eight": (MODEL, Mesh(tensor=8), "batch", dict.fromkeys(FP32, "int8")),
    "bf16": (MODEL, Mesh(), "copied", dict.fromkeys(FP32, "bf16")),
    "fp8 weights and cache": (
        MODEL,
        Mesh(),
        "copied",
        {"weights": "fp8", "kv": "fp8", "compute": "bf16"},
    ),
}
# Engines whose weights are quantized in groups: name -> (group, then as in `ENGINES`).
GROUPED: dict[str, tuple[int, ModelConfig, Mesh, str, dict[str, str]]] = {
    "int4, groups of 32": (32, MODEL, Mesh(), "copied", FP32 | {"weights": "int4"}),
    "int4, groups of 128 on eight": (
        128,
        MODEL,
        Mesh(tensor=8),
        "batch",
        FP32 | {"weights": "int4"},
    ),
    "int8, groups of 32 on two": (32, MODEL, Mesh(tensor=2), "copied", FP32 | {"weights": "int8"}),
}


def engine(
    model: ModelConfig, mesh: Mesh, kv: str, dtypes: dict[str, str], group: int | None = None
) -> EngineState:
    """On as many devices as its mesh has."""
    layout = ServeLayout(mesh=mesh, kv=kv)
    devices = np.array(jax.devices()[: mesh.n_chips])
    on = split_tensor(role_mesh(layout.sizes, devices), kv_heads(model))
    table = Table(rules=serve_rules(layout), mesh=on)
    job = Serve(context=CONTEXT, **dtypes)
    return EngineState(config=model, job=job, layout=layout, table=table, batch=BATCH, group=group)


def answers(
    serving: EngineState, weights: Any
) -> tuple[list[list[int]], list[list[np.ndarray[Any, Any]]], list[int]]:
    """(texts, logits of the last prompt token and of each generated one, lengths of prompts)."""

    def placed(arrays: Any, shapes: Any) -> Any:
        return jax.tree.map(lambda x, s: jax.device_put(np.asarray(x), s.sharding), arrays, shapes)

    held = placed(jax.jit(serving.quantize_weights)(weights), serving.weight_shapes())
    cache = placed(serving.init_cache(), serving.cache_shapes())
    rows = BATCH * serving.n_engines
    lengths = np.array(LENGTHS * serving.n_engines, np.int32)
    drawn = np.random.default_rng(1).integers(0, VOCAB, (rows, max(LENGTHS))).astype(np.int32)
    texts = [[int(t) for t in drawn[i, : lengths[i]]] for i in range(rows)]
    logits: list[list[np.ndarray[Any, Any]]] = [[] for _ in range(rows)]
    last = np.zeros(rows, np.int32)
    half = BATCH // 2
    read = jax.jit(PrefillStep(engine=serving, n=half, seq=max(LENGTHS)).function())
    for part in (1, 0):
        slots = np.arange(half) + part * half
        chosen = np.concatenate([e * BATCH + slots for e in range(serving.n_engines)])
        prompts = {
            "tokens": drawn[chosen],
            "lengths": lengths[chosen],
            "rows": (chosen % BATCH).astype(np.int32),
        }
        cache, first, found = read(held, cache, prompts)
        last[chosen] = first
        for row, one in zip(chosen, np.asarray(found), strict=True):
            logits[row].append(one)
    generate = jax.jit(DecodeStep(engine=serving).function())
    for _ in range(GENERATED):
        for text, token in zip(texts, last, strict=True):
            text.append(int(token))
        cache, tokens, found = generate(held, cache, last)
        last = np.array(tokens)
        for row, one in zip(logits, np.asarray(found), strict=True):
            row.append(one)
    return texts, logits, lengths.tolist()


def apart(name: str) -> dict[str, float]:
    """Largest and root mean square distance of logits from those of the plain forward pass.

    For weights in groups, that pass has the numbers that they stand for.
    """
    group = None
    if name in GROUPED:
        group, *case = GROUPED[name]
    else:
        case = [*ENGINES[name]]
    model = case[0]
    weights = init_weights(describe(model), jax.random.key(0), jnp.float32)
    serving = engine(*case, group=group)
    texts, logits, lengths = answers(serving, weights)
    if group:
        weights = jax.tree.map(
            lambda w: dequantized(w, jnp.float32) if isinstance(w, Grouped) else w,
            serving.quantize_weights(weights),
            is_leaf=lambda w: isinstance(w, Grouped),
        )
    outer = {k: np.asarray(v, np.float64) for k, v in weights["outer"].items()}
    layers = [
        {k: np.asarray(v[i], np.float64) for k, v in weights["layers"][0].items()}
        for i in range(model.n_layers)
    ]
    off = [
        np.array(found) - forward.logits(model, outer, layers, np.array(text))[n - 1 :]
        for text, found, n in zip(texts, logits, lengths, strict=True)
    ]
    every = np.concatenate([x.ravel() for x in off])
    return {"most": float(np.abs(every).max()), "rms": float(np.sqrt(np.mean(every**2)))}


def main() -> None:
    """Print one object per engine."""
    print(json.dumps({name: apart(name) for name in sys.argv[1:]}))


if __name__ == "__main__":
    main()
