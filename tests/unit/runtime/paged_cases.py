"""Logits of small models over a paged cache, held against a forward pass over whole sequences.

`python -m tests.unit.runtime.scripts paged_cases NAMES` reads three sequences in chunks of unequal
lengths, with blocks in random order, and prints for each case how far the logits lie from those of
the program that trains, as one JSON document.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from shardwise.models import Attention, Layer, LayerGroup, ModelConfig, Moe
from shardwise.ops import forward
from shardwise.runtime.layout.mesh import RoleMesh, role_mesh
from shardwise.runtime.layout.sharding import Table
from shardwise.runtime.serving import sequence_parallel
from shardwise.runtime.serving.engine_state import EngineState, engine_table
from shardwise.runtime.serving.forward import PagedForward
from shardwise.runtime.serving.kv_layout import kv_heads, split_tensor
from shardwise.runtime.weights.descriptions import (
    ArrayInfo,
    Tree,
    describe,
    map_infos,
)
from shardwise.runtime.weights.quantized import Grouped, dequantized
from shardwise.strategy.mesh import Mesh
from shardwise.strategy.serving_layout import ServeLayout
from shardwise.workload import Serve
from tests.unit.runtime.drawn import drawn_weights
from tests.unit.runtime.expert_cases import MODELS
from tests.unit.runtime.logits import logits
from tests.unit.runtime.model_cases import CASES

SEQ, ROWS, LONGEST = 24, 3, 10
BLOCKS, BLOCK_TOKENS = 40, 8
FP32 = {"weights": "fp32", "kv": "fp32", "compute": "fp32"}
DENSE = ModelConfig.dense(n_layers=2, d_model=64, d_ff=128, n_heads=8, n_kv_heads=2, vocab=256)
WINDOW = ModelConfig.dense(
    n_layers=2, d_model=64, d_ff=128, n_heads=8, n_kv_heads=2, vocab=256, window=8
)
# Rounding changes which experts a token chooses, unless it chooses all.
UNROUTED = ModelConfig(
    name="small",
    d_model=64,
    vocab=256,
    groups=(
        LayerGroup(
            layer=Layer(
                attention=Attention(n_heads=8, n_kv_heads=4, d_head=8),
                ffn=Moe(n_experts=4, experts_per_token=4, d_ff=64),
            ),
            count=2,
        ),
    ),
)
# New tokens of each sequence in each pass.
PASSES = ((7, 10, 1), (4, 10, 3), (1, 1, 1), (1, 1, 1), (8, 0, 8), (1, 1, 8))


def even(config: ModelConfig) -> ModelConfig:
    """The model with a vocabulary that two chips can share."""
    return replace(config, vocab=92)


# With the layout of weights if that is not "stationary", and the tensor shards of an expert.
Case = (
    tuple[ModelConfig, Mesh, str, dict[str, str]]
    | tuple[ModelConfig, Mesh, str, dict[str, str], str]
    | tuple[ModelConfig, Mesh, str, dict[str, str], str, int]
)
# Between them every way in which attention and feed-forward layers differ.
DIFFERENT = (
    "mistral", "gemma3", "odd", "phi3", "gpt2", "falcon, ALiBi", "granite",
    "cohere, norms of heads", "olmo", "mixtral", "deepseek", "gpt-oss",
)  # fmt: skip
FAMILIES: dict[str, Case] = {
    name: ((CASES | MODELS)[name], Mesh(), "copied", FP32) for name in DIFFERENT
}
LAYOUTS: dict[str, Case] = {
    "tensor 2": (DENSE, Mesh(tensor=2), "copied", FP32),
    "tensor 8, copied": (DENSE, Mesh(tensor=8), "copied", FP32),
    "tensor 8, sequence": (DENSE, Mesh(tensor=8), "sequence", FP32),
    "two engines, tensor 4": (DENSE, Mesh(data=2, tensor=4), "sequence", FP32),
    "window, tensor 8, sequence": (WINDOW, Mesh(tensor=8), "sequence", FP32),
    "experts, tensor 4": (MODELS["mixtral"], Mesh(tensor=4), "copied", FP32),
    "latent attention, tensor 4": (MODELS["deepseek"], Mesh(tensor=4), "copied", FP32),
    "experts 2, tensor 4": (MODELS["mixtral"], Mesh(expert=2, tensor=4), "copied", FP32),
    "latents, experts 4, tensor 2": (
        MODELS["deepseek"],
        Mesh(expert=4, tensor=2),
        "sequence",
        FP32,
    ),
    "latents shared by four": (MODELS["deepseek"], Mesh(tensor=4), "sequence", FP32),
    "whole experts on tensor": (
        MODELS["mixtral"],
        Mesh(tensor=4),
        "copied",
        FP32,
        "stationary",
        1,
    ),
    "whole experts, expert 2, tensor 2": (
        MODELS["gpt-oss"],
        Mesh(expert=2, tensor=2),
        "copied",
        FP32,
        "stationary",
        1,
    ),
    "whole experts, shared too": (
        MODELS["deepseek"],
        Mesh(expert=2, tensor=4),
        "sequence",
        FP32,
        "stationary",
        1,
    ),
    "2D": (DENSE, Mesh(fsdp=4, tensor=2), "copied", FP32, "2d"),
    "2D, sequence": (DENSE, Mesh(fsdp=2, tensor=4), "sequence", FP32, "2d"),
    "2D without tensor": (DENSE, Mesh(fsdp=2), "copied", FP32, "2d"),
    "2D latents": (MODELS["deepseek"], Mesh(fsdp=2, tensor=2), "sequence", FP32, "2d"),
    "2D experts": (MODELS["gpt-oss"], Mesh(fsdp=2, tensor=2), "copied", FP32, "2d"),
    "2D experts 2": (MODELS["mixtral"], Mesh(fsdp=2, expert=2, tensor=2), "copied", FP32, "2d"),
    **{
        f"2D {name}": (even(CASES[name]), Mesh(fsdp=2, tensor=2), "copied", FP32, "2d")
        for name in ("gpt2", "falcon, ALiBi", "odd")
    },
    "context 2, tensor 4, sequence": (DENSE, Mesh(context=2, tensor=4), "sequence", FP32),
    "context 4, tensor 2": (DENSE, Mesh(context=4, tensor=2), "copied", FP32),
    "context 8, window": (WINDOW, Mesh(context=8), "copied", FP32),
    "context 2, experts 2, tensor 2": (
        MODELS["gpt-oss"],
        Mesh(context=2, expert=2, tensor=2),
        "copied",
        FP32,
    ),
    "context 2, latents": (MODELS["deepseek"], Mesh(context=2, tensor=2), "sequence", FP32),
    "context 2, 2D": (DENSE, Mesh(context=2, fsdp=2, tensor=2), "copied", FP32, "2d"),
    **{
        f"context 4, {name}": (CASES[name], Mesh(context=4), "copied", FP32)
        for name in ("gpt2", "falcon, ALiBi", "gemma3")
    },
    "pipe 2, tensor 4, sequence": (DENSE, Mesh(pipe=2, tensor=4), "sequence", FP32),
    "pipe 2, experts 2, tensor 2": (
        MODELS["mixtral"],
        Mesh(pipe=2, expert=2, tensor=2),
        "copied",
        FP32,
    ),
    "uneven stages, odd vocabulary": (
        replace(DENSE, vocab=255, groups=(replace(DENSE.groups[0], count=3),)),
        Mesh(pipe=2, tensor=4),
        "sequence",
        FP32,
    ),
    "pipe 2, window": (WINDOW, Mesh(pipe=2), "copied", FP32),
    "pipe 2, 2D": (DENSE, Mesh(pipe=2, fsdp=2, tensor=2), "copied", FP32, "2d"),
    **{
        f"pipe 2, {name}": (CASES[name], Mesh(pipe=2), "copied", FP32)
        for name in ("gpt2", "falcon, ALiBi")
    },
    "gathered": (DENSE, Mesh(fsdp=2, tensor=4), "sequence", FP32, "gathered"),
    "gathered latents": (MODELS["deepseek"], Mesh(fsdp=2), "copied", FP32, "gathered"),
    "gathered gpt2": (even(CASES["gpt2"]), Mesh(fsdp=2, tensor=2), "copied", FP32, "gathered"),
}
NARROW: dict[str, Case] = {
    "int8 weights": (DENSE, Mesh(), "copied", FP32 | {"weights": "int8"}),
    "int8 cache, tensor 8, sequence": (DENSE, Mesh(tensor=8), "sequence", FP32 | {"kv": "int8"}),
    "int8 on eight": (DENSE, Mesh(tensor=8), "sequence", dict.fromkeys(FP32, "int8")),
    "fp8 weights and cache": (
        DENSE,
        Mesh(),
        "copied",
        {"weights": "fp8", "kv": "fp8", "compute": "bf16"},
    ),
    "int8 experts": (UNROUTED, Mesh(expert=2, tensor=2), "copied", dict.fromkeys(FP32, "int8")),
    "bf16": (DENSE, Mesh(), "copied", dict.fromkeys(FP32, "bf16")),
}
# Weights in groups: name -> (elements of a group, case).
GROUPED: dict[str, tuple[int, Case]] = {
    "int4, groups of 32": (32, (DENSE, Mesh(), "copied", FP32 | {"weights": "int4"})),
    "int4, groups of 128 on eight": (
        128,
        (DENSE, Mesh(tensor=8), "sequence", FP32 | {"weights": "int4"}),
    ),
    "int8, groups of 32 on two": (
        32,
        (DENSE, Mesh(tensor=2), "copied", FP32 | {"weights": "int8"}),
    ),
}
BY_LAYER: dict[str, Case] = {  # as on GPUs
    f"by layer, {name}": LAYOUTS[name]
    for name in ("tensor 8, sequence", "two engines, tensor 4", "window, tensor 8, sequence", "2D")
}
# With tokens sharded over `tensor` between blocks, and collective matmuls in a ring.
SHARDED: dict[str, Case] = {
    f"tokens sharded, {name}": case
    for name, case in {
        **{
            name: LAYOUTS[name]
            for name in ("tensor 2", "tensor 8, copied", "tensor 8, sequence",
                         "two engines, tensor 4", "window, tensor 8, sequence")
        },
        **{name: (even(CASES[name]), Mesh(tensor=2), "copied", FP32)
           for name in ("gpt2", "gemma3", "granite", "olmo")},
        "int8": NARROW["int8 on eight"],
    }.items()
}  # fmt: skip
ALL: dict[str, tuple[int | None, Case]] = {
    **{
        name: (None, case)
        for name, case in (FAMILIES | LAYOUTS | NARROW | SHARDED | BY_LAYER).items()
    },
    **GROUPED,
}


def engine(case: Case, group: int | None = None) -> EngineState:
    """On as many devices as the mesh of a case has.

    Args:
        group: elements of a group of weights; None for weights without groups.
    """
    config, mesh, kv, dtypes, *chosen = case
    weights, expert_tensor = [*chosen, *("stationary", None)[len(chosen) :]]
    layout = ServeLayout(mesh=mesh, kv=kv, weights=weights, expert_tensor=expert_tensor)
    devices = np.array(jax.devices()[: mesh.n_chips])
    on = split_tensor(role_mesh(layout.sizes, devices), kv_heads(config))
    table = engine_table(layout, on)
    job = Serve(context=SEQ, **dtypes)
    return EngineState(config=config, job=job, layout=layout, table=table, batch=1, group=group)


def numbers(config: ModelConfig) -> Tree:
    """Random weights, in which norms and biases are no ones and zeros."""
    random = np.random.default_rng(1)

    def disturbed(info: ArrayInfo, x: Any) -> Any:
        noise = 0 if info.init_value is None else random.normal(0, 0.2, x.shape)
        return x + np.float32(noise)

    infos = describe(config)
    return map_infos(disturbed, infos, drawn_weights(infos))


def padded(state: EngineState, weights: Tree) -> Tree:
    """Weights with the padding of an engine."""

    def pad(info: ArrayInfo, x: Any) -> Any:
        missing = [n - there for n, there in zip(info.shape, x.shape, strict=True)]
        return np.pad(x, [(0, n) for n in missing])

    return map_infos(pad, state.infos, weights)


def weight_shardings(state: EngineState) -> Tree:
    """Where an engine has its weights."""
    mesh = state.table.mesh.jax_mesh
    shardings: Tree = jax.tree.map(
        lambda spec: NamedSharding(mesh, spec),
        state.weight_specs(),
        is_leaf=lambda x: isinstance(x, PartitionSpec),
    )
    return shardings


def snaking(mesh: RoleMesh, names: Sequence[str]) -> tuple[int, ...]:
    """A ring in another order than that of the chips, as on two axes of a torus."""
    n_chips = math.prod(mesh.jax_mesh.shape[name] for name in names)
    return (*range(0, n_chips, 2), *range(n_chips - 1, 0, -2))


def distance(
    group: int | None, case: Case, *, by_layer: bool = False, shards_tokens: bool = False
) -> dict[str, float]:
    """Largest difference of a logit, and the root mean square of all.

    For weights in groups, the pass over whole sequences has the numbers that they stand for.

    Args:
        by_layer: whether layers have their own arrays, as on GPUs, which the CPU has to act.
        shards_tokens: whether passes of several tokens shard them over `tensor` between blocks, and
            multiply in a ring, as on TPUs.
    """
    if by_layer:
        setattr(RoleMesh, "platform", "gpu")  # noqa: B010
    config = case[0]
    state = engine(case, group)
    if shards_tokens:
        setattr(RoleMesh, "ring_order", snaking)  # noqa: B010
        setattr(sequence_parallel, "PLATFORMS", ("cpu",))  # noqa: B010
        setattr(forward, "MIN_SHARDED_TOKENS", 1)  # noqa: B010
    longest = 16 if shards_tokens else LONGEST  # chips of `tensor` have equally many
    assert sequence_parallel.shards_tokens(state, longest) == shards_tokens
    paged = PagedForward(
        engine=state, n_blocks=BLOCKS, block_tokens=BLOCK_TOKENS, by_layer=by_layer
    )
    weights = numbers(config)
    one_device = role_mesh(Mesh().sizes, np.array(jax.devices()[:1]))
    random = np.random.default_rng(0)
    tokens = random.integers(0, config.vocab, (ROWS, SEQ)).astype(np.int32)
    table = Table(rules={}, mesh=one_device)
    stored = jax.jit(paged.engine.quantize_weights)(padded(state, weights))
    if group:
        weights = jax.tree.map(
            lambda w: dequantized(w, jnp.float32) if isinstance(w, Grouped) else w,
            stored,
            is_leaf=lambda w: isinstance(w, Grouped),
        )
    if by_layer:
        stored = paged.weights_by_layer(jax.device_put(stored, weight_shardings(state)))
    whole = np.asarray(jax.jit(logits(config, table, SEQ, jnp.float32))(weights, tokens))
    cache = paged.init_cache()
    tables = random.permutation(BLOCKS)[: ROWS * SEQ // BLOCK_TOKENS].reshape(ROWS, -1)
    run = jax.jit(paged.function(all_logits=True))
    run_for_last = jax.jit(paged.function())

    def of_engines(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The rows of one group of chips, for all."""
        return np.concatenate([x] * paged.engine.n_pools)

    past = np.zeros(ROWS, np.int32)
    differences, differences_of_last = [], []
    for sizes in PASSES:
        new = np.minimum(sizes, SEQ - past).astype(np.int32)
        # As in an engine, a pass of single tokens has a program of its own.
        chunk = np.zeros((ROWS, longest if max(sizes) > 1 else 1), np.int32)
        for row in range(ROWS):
            chunk[row, : new[row]] = tokens[row, past[row] : past[row] + new[row]]
        arguments = [of_engines(x) for x in (chunk, past, new, tables.astype(np.int32))]
        if shards_tokens:
            last_BV = run_for_last(stored, cache, *arguments)[1]
        cache, got = run(stored, cache, *arguments)
        if shards_tokens:
            of_rows = zip(got, last_BV, of_engines(new), strict=True)
            differences_of_last += [
                abs(of_row[max(n - 1, 0)] - x).max() for of_row, x, n in of_rows
            ]
        for i, logits_TV in enumerate(np.asarray(got, np.float32)):
            row = i % ROWS
            read = logits_TV[: new[row], : config.vocab]
            differences.append(read - whole[row, past[row] : past[row] + new[row]])
        past += new
    together = np.concatenate(differences)
    return {
        "n": len(together),
        "most": float(np.abs(together).max()),
        "most of last": float(max(differences_of_last, default=np.inf)),
        "rms": float(np.sqrt((together**2).mean())),
    }


if __name__ == "__main__":
    # Those that act another platform are last.
    names = sorted(sys.argv[1:] or ALL, key=lambda name: (name in BY_LAYER, name in SHARDED))
    found = {
        name: distance(*ALL[name], by_layer=name in BY_LAYER, shards_tokens=name in SHARDED)
        for name in names
    }
    print(json.dumps(found))
