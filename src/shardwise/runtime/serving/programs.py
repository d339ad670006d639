"""The two programs of a serving plan: a prompt, and a token for each sequence."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from shardwise.errors import BadInput, raise_all
from shardwise.hardware.switched import Switched
from shardwise.models import Layer, Mlp, ModelConfig
from shardwise.plan.schema.json_io import decode
from shardwise.plan.schema.serving import ServingPlan
from shardwise.plan.serving.rebuild import rebuild
from shardwise.runtime.layout.mesh import arrange, role_mesh
from shardwise.runtime.layout.sharding import Table
from shardwise.runtime.program import Program
from shardwise.runtime.serving.decode import DecodeStep
from shardwise.runtime.serving.engine_state import Serving
from shardwise.runtime.serving.kv_layout import kv_heads, split_tensor
from shardwise.runtime.serving.prefill import PrefillStep
from shardwise.runtime.weights.descriptions import Tree
from shardwise.search.serving.candidate import Candidate, Server
from shardwise.strategy.serving_layout import serve_rules

ROWS = 128  # tokens of a prompt come in multiples of it where the TPU's kernel attends


def decode_step(devices: np.ndarray[Any, Any], plan: str) -> Program:
    """One token for each sequence of the engines that generate.

    Args:
        devices: of the machine, in its own shape.
        plan: the plan as JSON.
    """
    chosen = _chosen(plan)
    serving = serving_of(chosen.server, chosen.batch, devices)
    step = DecodeStep(serving=serving)
    return _program("decode step", serving, step.function(), step.shapes())


def prefill_step(devices: np.ndarray[Any, Any], plan: str) -> Program:
    """Prompts, one on each part of an engine that reads them, beside the caches that it holds."""
    chosen = _chosen(plan)
    reader, n = chosen.reader or chosen.server, 1
    serving = serving_of(reader, n if chosen.reader else chosen.batch, devices)
    seq = chosen.job.prompt_tokens
    if serving.table.mesh.platform == "tpu":
        seq = -(-seq // ROWS) * ROWS
    step = PrefillStep(serving=serving, n=n, seq=seq)
    return _program("prefill step", serving, step.function(), step.shapes())


def _program(
    name: str, serving: Serving, function: Any, shapes: tuple[Tree, Tree, Tree]
) -> Program:
    """Jitted here, so that weights lie in memory as the products of both steps read them."""
    fn = jax.jit(function, donate_argnums=(1,), in_shardings=(serving.formats(), None, None))
    return Program(name=name, fn=fn, args=shapes, mesh=serving.table.mesh.jax_mesh, donate=(1,))


def _chosen(plan: str) -> Candidate:
    found = decode(plan)
    if not isinstance(found, ServingPlan):
        raise TypeError("a plan of training has no steps of serving")
    return rebuild(found)[1]


def serving_of(server: Server, batch: int, devices: np.ndarray[Any, Any]) -> Serving:
    """Engines of a plan on devices, each chip where the placement has it.

    Args:
        batch: sequences of one engine.

    Raises:
        BadInput: what a plan may say and this runtime does not do yet; all of it.
    """
    raise_all(BadInput, not_run(server))
    layout, sizes = server.layout, server.layout.sizes
    if isinstance(server.system.topology, Switched):
        # Placements behind switches are of one engine; others lie beside it.
        engines = devices.reshape(-1)[: layout.mesh.n_chips].reshape(sizes["data"], -1)
        one = {**sizes, "data": 1}
        rows = [arrange(server.placement, one, chips[None, :, None]) for chips in engines]
        arranged = np.stack(rows)
    else:
        arranged = arrange(server.placement, sizes, devices[..., :1])
    on = split_tensor(role_mesh(sizes, arranged), kv_heads(server.config))
    table = Table(rules=serve_rules(layout), mesh=on)
    return Serving(config=server.config, job=server.job, layout=layout, table=table, batch=batch)


def not_run(server: Server) -> list[str]:
    """What engines of this plan need that the runtime does not do."""
    model, job, sizes = server.config, server.job, server.layout.sizes
    found = [
        f"{role} {sizes[role]} of an engine is planned for, but not run: plan with --fix {role}=1."
        for role in ("fsdp", "context", "expert", "pipe")
        if sizes[role] > 1
    ]
    if not _is_llama(model):
        found.append(
            f"{model.name} has layers that are planned for, but not served. Served are layers of "
            "attention and a gated MLP, each after an RMS norm, without biases (LLaMA, Mistral)."
        )
    heads = sorted({a.n_kv_heads for a, _ in model.attentions})
    tensor = sizes["tensor"]
    if any(n % tensor and tensor % n for n in heads) or (len(heads) > 1 and tensor > heads[0]):
        found.append(f"n_kv_heads {', '.join(map(str, heads))} over tensor {tensor} is not run.")
    if model.vocab % tensor:
        found.append(f"vocab {model.vocab:,} over tensor {tensor} is not run.")
    if job.drafted:
        found.append(f"{job.drafted} drafted tokens a pass are planned for, but not run.")
    if job.cached:
        found.append(f"prompts of which {job.cached:.0%} is known are planned for, but not run.")
    per_chip = server.system.chip.n_devices or 1
    if per_chip > 1:
        found.append(f"{server.system.chip.name} has {per_chip} devices a chip; one is run.")
    return found


def _is_llama(model: ModelConfig) -> bool:
    """Layers in a row, each of the same blocks as Llama's, and nothing else around them."""
    around = (model.n_positions, model.final_norm_bias, model.unembedding_bias)
    beside = (model.order, model.scaled_embeddings, model.logit_softcap, model.norm.plus_one)
    plain = all(_is_plain(group.layer) for group in model.groups)
    return plain and model.norm.kind == "rms" and not any((*around, *beside))


def _is_plain(layer: Layer) -> bool:
    """Attention and a gated MLP, each after a norm, and nothing beside them."""
    a, ffn = layer.attention, layer.ffn
    if a is None or not isinstance(ffn, Mlp) or layer.norms != "pre" or layer.norm_bias:
        return False
    extras = (a.mla, a.q_bias, a.kv_bias, a.o_bias, a.qk_norm, a.sinks, ffn.bias, layer.parallel)
    beside = (a.alibi, a.softcap, a.qk_unit, a.temperature, a.rotary.interleaved)
    scaled = a.rotary.scaling.kind if a.rotary.scaling else "llama3"
    known = scaled == "llama3" and ffn.activation == "silu"
    return not any((*extras, *beside)) and a.rope and ffn.gated and known
