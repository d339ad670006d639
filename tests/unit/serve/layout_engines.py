"""Engines in every layout, held against a plain loop on one device.

`python -m tests.unit.runtime.scripts tests.unit.serve.layout_engines NAMES` serves the same
requests by each of these engines in each of `MODES`, and prints what came out as one JSON document.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shardwise.estimate.serving.compiled_shapes import CompiledShapes
from shardwise.models import ModelConfig
from shardwise.runtime.serving.forward import PagedForward
from shardwise.serve.programs import Programs
from shardwise.serve.request import Generation, Sampling
from shardwise.strategy.mesh import Mesh
from tests.unit.runtime.expert_cases import MODELS
from tests.unit.runtime.model_cases import CASES
from tests.unit.runtime.paged_cases import DENSE, FP32, WINDOW, Case, even, numbers, padded
from tests.unit.runtime.paged_cases import engine as engine_of
from tests.unit.serve.engines import Greedy, generate, running

CONTEXT, BLOCK_TOKENS, BLOCKS, SEQUENCES, TOKENS, NEW = 48, 4, 40, 2, 16, 8
LENGTHS = (30, 21, 9)  # of the prompts
FEW_BLOCKS = 16  # room for two of these prompts, and not for their outputs too
INT8 = FP32 | {"weights": "int8", "kv": "int8"}
LATENTS, ALIBI = MODELS["deepseek"], even(CASES["falcon, ALiBi"])
ODD = replace(DENSE, vocab=255, groups=(replace(DENSE.groups[0], count=5),))
LAYOUTS: dict[str, Case] = {
    "tensor 2": (DENSE, Mesh(tensor=2), "copied", FP32),
    "tensor 4, copied": (DENSE, Mesh(tensor=4), "copied", FP32),
    "tensor 8, sequence": (DENSE, Mesh(tensor=8), "sequence", FP32),
    "tensor 8, sequence, int8": (DENSE, Mesh(tensor=8), "sequence", INT8),
    "2D": (DENSE, Mesh(fsdp=2, tensor=2), "copied", FP32, "2d"),
    "2D, fsdp 4": (DENSE, Mesh(fsdp=4, tensor=2), "copied", FP32, "2d"),
    "2D, sequence": (DENSE, Mesh(fsdp=2, tensor=4), "sequence", FP32, "2d"),
    "2D, sequence, int8": (DENSE, Mesh(fsdp=2, tensor=4), "sequence", INT8, "2d"),
    "window, tensor 4, sequence": (WINDOW, Mesh(tensor=4), "sequence", FP32),
    "ALiBi, tensor 4": (ALIBI, Mesh(tensor=4), "copied", FP32),
    "ALiBi, 2D": (ALIBI, Mesh(fsdp=2, tensor=2), "copied", FP32, "2d"),
    "latents, tensor 4, copied": (LATENTS, Mesh(tensor=4), "copied", FP32),
    "latents, tensor 4, sequence": (LATENTS, Mesh(tensor=4), "sequence", FP32),
    "context 2, tensor 4, sequence": (DENSE, Mesh(context=2, tensor=4), "sequence", FP32),
    "context 4, int8": (DENSE, Mesh(context=4), "copied", INT8),
    "window, context 4": (WINDOW, Mesh(context=4), "copied", FP32),
    "ALiBi, context 2, tensor 2": (ALIBI, Mesh(context=2, tensor=2), "copied", FP32),
    "latents, context 2, tensor 2": (LATENTS, Mesh(context=2, tensor=2), "sequence", FP32),
    "context 2, 2D": (DENSE, Mesh(context=2, fsdp=2, tensor=2), "copied", FP32, "2d"),
    "pipe 2, tensor 4, sequence": (DENSE, Mesh(pipe=2, tensor=4), "sequence", FP32),
    "pipe 2, int8": (DENSE, Mesh(pipe=2), "copied", INT8),
    "ALiBi, pipe 2, tensor 2": (ALIBI, Mesh(pipe=2, tensor=2), "copied", FP32),
    "pipe 2, 2D": (DENSE, Mesh(pipe=2, fsdp=2, tensor=2), "copied", FP32, "2d"),
    "uneven stages, odd vocabulary": (ODD, Mesh(pipe=2, tensor=4), "sequence", FP32),
    "uneven stages, int8": (ODD, Mesh(pipe=4), "copied", INT8),
    "pipe 4": (
        replace(DENSE, groups=(replace(DENSE.groups[0], count=4),)),
        Mesh(pipe=4),
        "copied",
        FP32,
    ),
    "latents, 2D, sequence": (LATENTS, Mesh(fsdp=2, tensor=2), "sequence", FP32, "2d"),
}
# How requests are served: limits of the engine. Those of "prefix cached" have been served before.
MODES: dict[str, dict[str, Any]] = {
    "alone": {"max_sequences": 1, "prefix_cache": False},
    "batched": {},
    "prefix cached": {},
    "chunked": {"max_tokens": 5},
    "whole prompts": {"chunked": False},
    "preempted": {"n_blocks": FEW_BLOCKS, "watermark": 0.0},
}


class TwoShapes(CompiledShapes):
    def batch_sizes(self) -> list[int]:
        return [self.max_sequences]

    def chunk_lengths(self) -> list[int]:
        return [1, self.max_tokens]

    def is_compiled(self, n_rows: int, length: int) -> bool:
        return True


class FewShapes(Programs):
    """Programs of one number of rows and of two lengths, which are compiled in less time."""

    @property
    def shapes(self) -> CompiledShapes:
        return TwoShapes(max_sequences=self.max_sequences, max_tokens=self.max_tokens)


def programs(case: Case) -> Programs:
    """Programs of a case with random weights."""
    state = engine_of(case)
    shardings = jax.tree.map(lambda x: x.sharding, state.weight_shapes())
    return FewShapes(
        forward=PagedForward(engine=state, n_blocks=BLOCKS, block_tokens=BLOCK_TOKENS),
        weights=jax.device_put(
            jax.jit(state.quantize_weights)(padded(state, numbers(case[0]))), shardings
        ),
        max_sequences=SEQUENCES,
        max_tokens=TOKENS,
        max_context=CONTEXT,
    )


class PagedGreedy:
    """Continuations by a plain loop over a paged cache on one device, for narrow dtypes."""

    def __init__(self, case: Case) -> None:
        config, _, _, dtypes, *_ = case
        state = engine_of((config, Mesh(), "copied", dtypes))
        n_blocks = CONTEXT // BLOCK_TOKENS
        self._forward = PagedForward(engine=state, n_blocks=n_blocks, block_tokens=BLOCK_TOKENS)
        self._weights = jax.jit(state.quantize_weights)(numbers(config))
        self._run = jax.jit(self._forward.function())
        self._table = jnp.arange(n_blocks, dtype=jnp.int32)[None]

    def continuation(self, prompt: Sequence[int], n: int) -> list[int]:
        cache = self._forward.init_cache()
        generated: list[int] = []
        past, new = 0, list(prompt)
        while len(generated) < n:
            chunk = np.zeros((1, CONTEXT if past == 0 else 1), np.int32)
            chunk[0, : len(new)] = new
            sizes = (np.array([size], np.int32) for size in (past, len(new)))
            cache, logits_BV = self._run(self._weights, cache, chunk, *sizes, self._table)
            past, new = past + len(new), [int(logits_BV[0].argmax())]
            generated += new
        return generated


@functools.cache
def plain(config: ModelConfig, is_narrow: bool) -> Callable[[Sequence[int], int], list[int]]:
    """Continues prompts by a plain loop on one device."""
    if is_narrow:
        return PagedGreedy((config, Mesh(), "copied", INT8)).continuation
    return Greedy(config, numbers(config), CONTEXT).continuation


def prompts(config: ModelConfig) -> list[tuple[int, ...]]:
    random = np.random.default_rng(0)
    return [tuple(random.integers(0, config.vocab, n).tolist()) for n in LENGTHS]


def requests(texts: Iterable[tuple[int, ...]]) -> list[Generation]:
    greedy = Sampling(temperature=0)
    return [
        Generation(id=str(i), prompt=text, max_tokens=NEW, sampling=greedy)
        for i, text in enumerate(texts)
    ]


def served(case: Case) -> dict[str, Any]:
    """Outputs by mode, those of a plain loop, and what shows that the modes are what they say."""
    config, dtypes = case[0], case[3]
    compiled = programs(case)
    compiled.compile()
    texts = prompts(config)
    n_pools = compiled.forward.engine.n_pools
    sizes = {"n_blocks": BLOCKS, "max_sequences": SEQUENCES, "max_tokens": TOKENS}
    outputs = {}
    cached = preemptions = 0
    for mode, limits in MODES.items():
        of_all_pools = {
            name: n * n_pools for name, n in {**sizes, **limits}.items() if name in sizes
        }
        with running(
            compiled, **{"block_tokens": BLOCK_TOKENS, **limits, **of_all_pools}
        ) as engine:
            found = generate(engine, requests(texts))
            if mode == "prefix cached":
                again = [replace(r, id=f"{r.id} again") for r in requests(texts)]
                found = generate(engine, again)
                cached = min(output.tokens[0].cached for output in found)
            if mode == "preempted":
                preemptions = engine.stats().preemptions
        outputs[mode] = [output.ids for output in found]
    continuation = plain(config, dtypes != FP32)
    expected = [continuation(text, NEW) for text in texts]
    return {"outputs": outputs, "plain": expected, "cached": cached, "preemptions": preemptions}


if __name__ == "__main__":
    print(json.dumps({name: served(LAYOUTS[name]) for name in sys.argv[1:] or LAYOUTS}))
