"""Engines whose sequences are distributed to pools of chips, held against a plain loop.

`python -m tests.unit.runtime.scripts tests.unit.serve.pooled_engines NAMES` serves the same
requests by each of these engines, with the cache of the first pool too small for its requests, and
prints what came out as one JSON document.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import shardwise as sw
from shardwise.models import ModelConfig
from shardwise.runtime import devices
from shardwise.runtime.layout.mesh import role_mesh
from shardwise.runtime.layout.sharding import Table
from shardwise.runtime.serving.forward import PagedForward
from shardwise.serve import engine_states
from shardwise.serve.drafts import NgramDrafter
from shardwise.serve.engine_options import EngineOptions
from shardwise.serve.launch import launched
from shardwise.serve.model_files import find_model
from shardwise.serve.request import Generation, Sampling
from shardwise.strategy.mesh import Mesh
from shardwise.workload import Serve
from tests.unit.runtime.expert_cases import MODELS
from tests.unit.runtime.paged_cases import DENSE, FP32, Case
from tests.unit.runtime.paged_cases import engine as engine_of
from tests.unit.serve.engines import Greedy, OneSize, generate, random_weights, running
from tests.unit.serve.model_files.tiny import write_folder

CONTEXT, BLOCK_TOKENS, SEQUENCES, TOKENS, NEW = 48, 4, 2, 16, 10
BLOCKS = 17  # of a pool: for one long sequence and a short one
LONG, SHORT = 30, 5
DRAFTED = 2
PLAN = "a plan"  # that is launched
MIXTRAL = {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}


@dataclass(frozen=True, slots=True)
class Pooled:
    """An engine by its model and layout, and whether it drafts."""

    case: Case
    drafts: bool = False


CASES = {
    "experts 2, tensor 2": Pooled((MODELS["mixtral"], Mesh(expert=2, tensor=2), "copied", FP32)),
    "experts 4": Pooled((MODELS["mixtral"], Mesh(expert=4), "copied", FP32)),
    "experts 8": Pooled((MODELS["gpt-oss"], Mesh(expert=8), "copied", FP32)),
    "experts 2, shared heads": Pooled(
        (MODELS["mixtral"], Mesh(expert=2, tensor=4), "sequence", FP32)
    ),
    "experts 2, context 2, tensor 2": Pooled(
        (MODELS["gpt-oss"], Mesh(expert=2, context=2, tensor=2), "copied", FP32)
    ),
    "experts 2, pipe 2, tensor 2": Pooled(
        (MODELS["mixtral"], Mesh(expert=2, pipe=2, tensor=2), "copied", FP32)
    ),
    "whole experts, experts 2, tensor 2": Pooled(
        (MODELS["gpt-oss"], Mesh(expert=2, tensor=2), "copied", FP32, "stationary", 1)
    ),
    "latents, experts 4": Pooled((MODELS["deepseek"], Mesh(expert=4), "copied", FP32)),
    "latents, experts 2, tensor 4": Pooled(
        (MODELS["deepseek"], Mesh(expert=2, tensor=4), "sequence", FP32)
    ),
    "gathered, fsdp 4, tensor 2": Pooled(
        (DENSE, Mesh(fsdp=4, tensor=2), "copied", FP32, "gathered")
    ),
    "experts 2, drafts": Pooled((MODELS["mixtral"], Mesh(expert=2), "copied", FP32), drafts=True),
}


def prompts(config: ModelConfig, n_pools: int) -> list[list[int]]:
    """Long prompts for the first pool and short ones for the others, by requests in turns."""
    random = np.random.default_rng(0)
    lengths = [LONG if i % n_pools == 0 else SHORT + i for i in range(2 * n_pools)]
    return [random.integers(0, config.vocab, n).tolist() for n in lengths]


def greedy(index: int, text: list[int]) -> Generation:
    return Generation(
        id=str(index), prompt=tuple(text), max_tokens=NEW, sampling=Sampling(temperature=0)
    )


def served(one: Pooled) -> dict[str, Any]:
    """The outputs of an engine with their texts by a plain loop, and its counts."""
    config = one.case[0]
    state = engine_of(one.case)
    n_pools = state.n_pools
    weights = random_weights(model=config)
    compiled = OneSize(
        forward=PagedForward(engine=state, n_blocks=BLOCKS, block_tokens=BLOCK_TOKENS),
        weights=jax.device_put(weights, jax.tree.map(lambda x: x.sharding, state.weight_shapes())),
        max_sequences=SEQUENCES,
        max_tokens=SEQUENCES * TOKENS,
        max_context=CONTEXT,
        max_drafted=DRAFTED if one.drafts else 0,
        n_host_blocks=n_pools,
    )
    compiled.compile()
    plain = Greedy(config, weights, CONTEXT)
    texts = prompts(config, n_pools)
    requests = [
        Generation(id=str(i), prompt=tuple(text), max_tokens=NEW, sampling=Sampling(temperature=0))
        for i, text in enumerate(texts)
    ]
    limits = {
        "n_blocks": BLOCKS * n_pools,
        "block_tokens": BLOCK_TOKENS,
        "max_sequences": SEQUENCES * n_pools,
        "max_tokens": TOKENS * n_pools,
        "n_host_blocks": n_pools,
        "watermark": 0.0,
        "tokens_per_pass": 1 + compiled.max_drafted,
    }
    with running(compiled, NgramDrafter() if one.drafts else None, **limits) as engine:
        outputs = generate(engine, requests)
        longer = texts[1] + outputs[1].ids + [3, 1]
        outputs += generate(engine, [replace(greedy(len(texts), longer), max_tokens=4)])
        pools = engine._scheduler.pools
    texts.append(longer)
    return {
        "ids": [output.ids for output in outputs],
        "plain": [plain.continuation(t, len(o.ids)) for t, o in zip(texts, outputs, strict=True)],
        "cached": outputs[-1].tokens[0].cached,
        "preemptions": [pool.preemptions for pool in pools],
        "used": [pool.blocks.used for pool in pools],
    }


def served_plan() -> dict[str, Any]:
    """Outputs of a launched plan with experts over chips, in fp32 on devices of this CPU."""
    planned = engine_states._planned
    devices.devices_for = lambda *_: np.array(jax.devices()).reshape(1, 8)

    def in_fp32(plan: Any) -> Any:
        state = planned(plan)
        return replace(state, job=replace(state.job, compute="fp32"))

    engine_states._planned = in_fp32
    with TemporaryDirectory() as folder:
        model = find_model(str(write_folder(Path(folder), **MIXTRAL)))
        plan = sw.plan(
            model.config,
            sw.hardware("h100:8"),
            Serve(context=CONTEXT, batch=8, weights="fp32", kv="fp32"),
            {"expert": 4, "tensor": 2},
        )
        options = EngineOptions(context=CONTEXT, pass_tokens=4 * TOKENS)
        with launched(model, options, plan) as engine:
            texts = prompts(model.config, 4)
            outputs = generate(engine, [greedy(i, text) for i, text in enumerate(texts)])
            limits = engine._scheduler.limits
            blocks = engine.stats().blocks
        table = Table(rules={}, mesh=role_mesh(Mesh().sizes, np.array(jax.devices()[:1])))
        plain = Greedy(model.config, model.weights.load(table, jnp.float32), CONTEXT)
    return {
        "ids": [output.ids for output in outputs],
        "plain": [plain.continuation(t, NEW) for t in texts],
        "limits": [limits.max_sequences, limits.max_tokens, limits.n_blocks],
        "blocks": blocks,
    }


if __name__ == "__main__":
    runs = {name: served(CASES[name]) for name in sys.argv[1:] if name in CASES}
    if PLAN in sys.argv:
        runs[PLAN] = served_plan()
    print(json.dumps(runs))
