"""Build the two programs of a serving plan: the prefill step and the decode step."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from shardwise.arrays import ceil_div
from shardwise.errors import BadInput, raise_all
from shardwise.hardware.switched import Switched
from shardwise.models import Layer, Mlp, ModelConfig
from shardwise.plan.schema.json_io import decode
from shardwise.plan.schema.serving import ServingPlan
from shardwise.plan.serving.rebuild import rebuild
from shardwise.runtime.layout.mesh import arrange, role_mesh
from shardwise.runtime.layout.sharding import Table
from shardwise.runtime.program import Program
from shardwise.runtime.serving.engine_state import EngineState
from shardwise.runtime.serving.forward import PagedForward, block_tokens
from shardwise.runtime.serving.kv_layout import kv_heads, split_tensor
from shardwise.search.serving.candidate import Candidate, Server
from shardwise.strategy.serving_layout import serve_rules

NOT_YET = "the planner supports it, the runtime does not yet"


def decode_step(devices: np.ndarray[Any, Any], plan: str) -> Program:
    """Build a decode step of a plan: one token for each sequence of the decode engines.

    Args:
        devices: all devices of the machine, with the dims that `mesh.arrange` takes.
    """
    deployment = _deployment(plan)
    engine = engine_state(deployment.server, deployment.batch, devices)
    return _program("decode step", engine, deployment.batch, deployment.batch, 1)


def prefill_step(devices: np.ndarray[Any, Any], plan: str) -> Program:
    """Build a prefill step of a plan: a chunk with the tokens of one prompt per engine.

    Its cache is for one sequence if prefill has engines of its own, otherwise for the batch of the
    decode step.

    Args:
        devices: all devices of the machine, with the dims that `mesh.arrange` takes.
    """
    deployment = _deployment(plan)
    server = deployment.prefill_server or deployment.server
    held = 1 if deployment.prefill_server else deployment.batch
    engine = engine_state(server, held, devices)
    return _program("prefill step", engine, held, 1, deployment.job.prompt_tokens)


def _program(name: str, engine: EngineState, held: int, n: int, n_tokens: int) -> Program:
    """A pass over `n_tokens` new tokens of n sequences, with a cache for `held` whole sequences.

    The weights have the memory layouts of `engine.formats`.
    """
    block = block_tokens(engine)
    per_sequence = int(ceil_div(engine.job.context, block))
    forward = PagedForward(engine=engine, n_blocks=held * per_sequence, block_tokens=block)
    n_read = int(ceil_div(n_tokens, block)) if n_tokens > 1 else per_sequence
    batch = forward.batch_shapes(n, n_tokens, n_read)
    args = (engine.weight_shapes(), forward.cache_shapes(), *batch)
    formats = (engine.formats(), *(None for _ in args[1:]))
    fn = jax.jit(forward.function(), donate_argnums=(1,), in_shardings=formats)
    return Program(name=name, fn=fn, args=args, mesh=engine.table.mesh.jax_mesh, donate=(1,))


def _deployment(plan: str) -> Candidate:
    """The engines and the job of a plan in JSON."""
    decoded = decode(plan)
    if not isinstance(decoded, ServingPlan):
        raise TypeError("a training plan has no serving steps")
    return rebuild(decoded)[1]


def engine_state(server: Server, batch: int, devices: np.ndarray[Any, Any]) -> EngineState:
    """Describe the arrays of a plan's engines, with the devices where the placement puts its chips.

    Args:
        server: identical engines on a machine.
        batch: number of sequences in the cache of one engine.
        devices: all devices of the machine, with the dims that `mesh.arrange` takes.

    Raises:
        BadInput: the runtime does not support the layout; lists all reasons.
    """
    raise_all(BadInput, unsupported_layout(server))
    layout = server.layout
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
    mesh = split_tensor(role_mesh(sizes, arranged), kv_heads(server.config))
    return EngineState(
        config=server.config,
        job=server.job,
        layout=layout,
        table=Table(rules=serve_rules(layout), mesh=mesh),
        batch=batch,
    )


def unsupported(server: Server) -> list[str]:
    """List the features of a plan's engines that its two steps do not support yet, as messages."""
    model = server.config
    job = server.job
    problems = unsupported_layout(server)
    if not _is_llama(model):
        problems.append(
            f"{model.name} has layers other than attention and a gated MLP, each after an RMS "
            f"norm, without biases (LLaMA, Mistral): {NOT_YET}."
        )
    if job.drafted:
        problems.append(f"{job.drafted} drafted tokens per forward pass: {NOT_YET}.")
    if job.cached:
        problems.append(f"prompts of which {job.cached:.0%} is cached: {NOT_YET}.")
    return problems


def unsupported_layout(server: Server) -> list[str]:
    """List what no program of the runtime supports in the layout of engines, as messages."""
    model = server.config
    sizes = server.layout.sizes
    problems = []
    for role in ("fsdp", "context", "expert", "pipe"):
        if sizes[role] > 1:
            problems.append(
                f"{role} {sizes[role]} of an engine: {NOT_YET}. Run shardwise plan with "
                f"--fix {role}=1."
            )
    head_counts = sorted({a.n_kv_heads for a, _ in model.attentions})
    tensor = sizes["tensor"]
    indivisible = any(n % tensor and tensor % n for n in head_counts)
    if indivisible or (len(head_counts) > 1 and tensor > head_counts[0]):
        counts = ", ".join(map(str, head_counts))
        problems.append(f"n_kv_heads {counts} over tensor {tensor}: {NOT_YET}.")
    if model.vocab % tensor:
        problems.append(f"vocab {model.vocab:,} over tensor {tensor}: {NOT_YET}.")
    per_chip = server.system.chip.n_devices or 1
    if per_chip > 1:
        problems.append(
            f"{server.system.chip.name} has {per_chip} devices a chip; the runtime supports 1."
        )
    return problems


def _is_llama(model: ModelConfig) -> bool:
    """Whether the model is a sequence of Llama's layers, with Llama's embedding and head."""
    if model.norm.kind != "rms":
        return False
    deviations = (
        model.n_positions,
        not model.final_norm_scale,
        model.final_norm_bias,
        model.unembedding_bias,
        model.order,
        model.scaled_embeddings,
        model.embedding_scale != 1,
        model.residual_scale != 1,
        model.logit_scale != 1,
        model.logit_softcap,
        model.norm.plus_one,
    )
    return not any(deviations) and all(_is_llama_layer(group.layer) for group in model.groups)


def _is_llama_layer(layer: Layer) -> bool:
    """Whether a layer has attention and a gated MLP as Llama's has, each after a norm."""
    a = layer.attention
    ffn = layer.ffn
    if a is None or not isinstance(ffn, Mlp) or layer.norms != "pre":
        return False
    if a.rotary.scaling and a.rotary.scaling.kind != "llama3":
        return False
    deviations = (
        not layer.norm_scale,
        layer.norm_bias,
        layer.parallel,
        ffn.bias,
        a.mla,
        a.q_bias,
        a.kv_bias,
        a.o_bias,
        a.clip is not None,
        a.qk_norm,
        a.sinks,
        a.alibi,
        a.softcap,
        a.qk_unit,
        a.temperature,
        a.rotary.interleaved,
    )
    return not any(deviations) and a.rope and ffn.gated and ffn.activation == "silu"
