"""Start the engine of a model, on the machine of a plan or on the devices that are here."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwise import units
from shardwise.arrays import ceil_div
from shardwise.errors import BadInput, raise_all
from shardwise.estimate.serving.overhead import OURS
from shardwise.models import ModelConfig
from shardwise.plan.schema.serving import ServingPlan
from shardwise.runtime.devices import require_jax
from shardwise.serve.model_files import ServedModel
from shardwise.simulate.limits import Limits
from shardwise.strategy.mesh import Mesh
from shardwise.strategy.serving_layout import ServeLayout
from shardwise.workload import Serve

if TYPE_CHECKING:
    from shardwise.runtime.serving.engine_state import EngineState
    from shardwise.runtime.serving.forward import PagedForward
    from shardwise.serve.drafts import Drafter
    from shardwise.serve.engine import InferenceEngine

CONTEXT = 2048  # longest sequence, if neither the model nor an option says less
SEQUENCES = 16  # that run at the same time, unless an option says otherwise
PASS_TOKENS = OURS.max_tokens
INT4_GROUP = 32  # weights that share a scale in int4: blocks of GGUF files are kept as they are
MEMORY_SHARE = 0.9  # of an accelerator's memory, for weights and cache
PROBE = "A text by which two tokenizers are compared: 1234 + x_y."

Progress = Callable[[str, int, int], None]  # (what is done, how many are done, of how many)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """What is chosen about an engine; None for what the plan or the machine says.

    Args:
        context: the most tokens of prompt and output together.
        sequences: the most sequences that run at the same time.
        pass_tokens: the most tokens of a pass.
        weights, kv: dtypes of the weights and of the cache.
        drafted: tokens drafted for each sequence in a pass; 0 for no drafts.
        draft_model: a small model that drafts them; None to draft from a sequence's own text.
    """

    context: int | None = None
    sequences: int | None = None
    pass_tokens: int | None = None
    weights: str | None = None
    kv: str | None = None
    drafted: int = 0
    draft_model: ServedModel | None = None


@contextmanager
def launched(
    model: ServedModel,
    options: EngineOptions,
    plan: ServingPlan | None = None,
    progress: Progress = lambda stage, done, total: None,
) -> Iterator[InferenceEngine]:
    """Load a model, compile its programs, and start its engine; it is closed at the end.

    Raises:
        BadInput: the model or the plan is not served here.
        BadFile: the weights cannot be read.
        MissingExtra: JAX is not installed.
    """
    require_jax("serving", "pip install 'shardwise[serve]'")
    from shardwise.serve.draft_model import DraftModel
    from shardwise.serve.drafts import NgramDrafter
    from shardwise.serve.engine import InferenceEngine
    from shardwise.serve.programs import Programs

    context = _context(model, options, plan)
    state = _planned(plan, options) if plan else _local(model.config, options, context)
    if plan and state.config.d_model != model.config.d_model:
        raise BadInput(
            f"the plan is for {state.config.name}, and {model.source} has another model."
        )
    models = [model]
    states = [_state_of(model, state, context)]
    if options.draft_model:
        models.append(options.draft_model)
        small = _small_engine(model, options.draft_model, options, state)
        states.append(_state_of(options.draft_model, small, context))
    progress("weights", 0, 1)
    weights = [m.weights.load_for(s) for m, s in zip(models, states, strict=True)]
    sequences = options.sequences or (state.batch if plan else SEQUENCES)
    forwards = _forwards(states, sequences, context + options.drafted)
    pass_tokens = max(options.pass_tokens or PASS_TOKENS, sequences)
    sizes = {
        "max_sequences": sequences,
        "max_tokens": min(pass_tokens, max(context, sequences)),
        "max_context": context,
    }
    n = options.drafted
    programs = Programs(forward=forwards[0], weights=weights[0], max_drafted=n, **sizes)
    programs.compile(lambda done, total: progress("programs", done, total))
    drafter: Drafter | None = NgramDrafter() if n else None
    if options.draft_model:
        drafter = DraftModel(forward=forwards[1], weights=weights[1], n_drafted=n, **sizes)
    if drafter is not None:
        drafter.compile(lambda done, total: progress("drafts", done, total))
    limits = Limits(
        n_blocks=forwards[0].n_blocks,
        block_tokens=forwards[0].block_tokens,
        max_sequences=sequences,
        max_tokens=pass_tokens,
        tokens_per_pass=1 + n,
    )
    engine = InferenceEngine(programs, limits, drafter)
    try:
        yield engine
    finally:
        engine.close()


def _context(model: ServedModel, options: EngineOptions, plan: ServingPlan | None) -> int:
    """The longest sequence.

    Raises:
        BadInput: it is longer than the model's.
    """
    context = options.context
    if context is None:
        context = min(model.max_context, plan.workload.context if plan else CONTEXT)
    if context > model.max_context:
        raise BadInput(
            f"--context {context:,} is longer than the {model.max_context:,} tokens of "
            f"{model.name}. Use --context {model.max_context} or less."
        )
    return context


def _local(
    config: ModelConfig,
    options: EngineOptions,
    context: int,
    devices: Sequence[Any] | None = None,
) -> EngineState:
    """One engine on as many devices as divide the model's heads, of those that are here."""
    from shardwise.runtime.devices import PLATFORMS, local_devices
    from shardwise.runtime.layout.mesh import role_mesh
    from shardwise.runtime.layout.sharding import Table
    from shardwise.runtime.serving.engine_state import EngineState
    from shardwise.runtime.serving.kv_layout import kv_heads, split_tensor
    from shardwise.strategy.serving_layout import serve_rules

    devices = devices or local_devices()
    compute = "fp32" if devices[0].platform == PLATFORMS["cpu"] else "bf16"
    n = max(n for n in range(1, len(devices) + 1) if _divides(n, config))
    layout = ServeLayout(mesh=Mesh(tensor=n), kv="sequence")
    mesh = split_tensor(role_mesh(layout.sizes, np.array(devices[:n])), kv_heads(config))
    job = Serve(
        context=context,
        weights=options.weights or config.checkpoint_dtype,
        kv=options.kv or compute,
        compute=compute,
    )
    table = Table(rules=serve_rules(layout), mesh=mesh)
    return EngineState(config=config, job=job, layout=layout, table=table, batch=1)


def _divides(n: int, config: ModelConfig) -> bool:
    """Whether n chips of `tensor` can share a model."""
    for a, _ in config.attentions:
        if a.n_heads % n or (a.n_kv_heads % n and n % a.n_kv_heads):
            return False
    return config.vocab % n == 0


def _planned(plan: ServingPlan, options: EngineOptions) -> EngineState:
    """The engine of a plan, on the devices where its placement puts the chips.

    Raises:
        BadInput: the plan has several engines, or one that the runtime does not support.
    """
    from shardwise.plan.serving.rebuild import rebuild
    from shardwise.runtime.devices import devices_for
    from shardwise.runtime.serving.programs import engine_state, unsupported_layout

    deployment = rebuild(plan)[1]
    server = deployment.server
    problems = unsupported_layout(server)
    if deployment.prefill_server:
        problems.append(
            "a plan with engines for prompts alone is not served yet. Run shardwise plan without "
            "--disaggregate."
        )
    if server.layout.sizes["expert"] > 1:
        problems.append(
            f"expert {server.layout.sizes['expert']}, which distributes sequences to groups of "
            "chips, is not served yet. Run shardwise plan with --fix expert=1."
        )
    if server.layout.sizes["data"] > 1:
        problems.append(
            f"{server.layout.sizes['data']} engines: one process serves one. Plan for "
            f"{server.layout.n_chips} chips, and run a server on each {server.layout.n_chips}."
        )
    raise_all(BadInput, problems)
    devices = devices_for(server.system, plan.model.name, "--serve --prompt N --output N")
    state = engine_state(server, deployment.batch, devices)
    job = replace(
        state.job, weights=options.weights or state.job.weights, kv=options.kv or state.job.kv
    )
    return replace(state, job=job)


def _state_of(model: ServedModel, state: EngineState, context: int) -> EngineState:
    """The engine of a model, for requests up to a context."""
    dtypes = state.job
    job = Serve(context=context, weights=dtypes.weights, kv=dtypes.kv, compute=dtypes.compute)
    group = INT4_GROUP if job.weights == "int4" else None
    return replace(state, config=model.config, job=job, group=group)


def _small_engine(
    model: ServedModel, small: ServedModel, options: EngineOptions, state: EngineState
) -> EngineState:
    """The engine of a model that drafts, on the devices of the large one.

    Args:
        state: engine of the large one.

    Raises:
        BadInput: the two models have different tokens.
    """
    tokens = [(m.tokenizer.vocab, m.tokenizer.encode(PROBE)) for m in (model, small)]
    if tokens[0] != tokens[1]:
        raise BadInput(
            f"{small.name} cannot draft for {model.name}: their tokenizers differ. Use --draft "
            "with a smaller model of the same family, or --draft ngram."
        )
    devices = list(state.table.mesh.jax_mesh.devices.flat)
    return _local(small.config, options, state.job.context, devices)


def _forwards(states: Sequence[EngineState], sequences: int, context: int) -> list[PagedForward]:
    """The forward pass of each model, with caches of as many blocks as are useful and fit.

    Args:
        states: the engine, and that of the model that drafts.

    Raises:
        BadInput: the longest sequence does not fit.
    """
    import jax

    from shardwise.runtime.serving.forward import PagedForward, block_tokens

    per_block = block_tokens(states[0])
    forwards = [PagedForward(engine=s, n_blocks=1, block_tokens=per_block) for s in states]
    block_bytes = 0
    for x in jax.tree.leaves([one_block.cache_shapes() for one_block in forwards]):
        block_bytes += math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
    wanted = sequences * int(ceil_div(context, per_block)) + 1
    memory = states[0].table.mesh.jax_mesh.devices.flat[0].memory_stats()
    n_blocks = wanted
    if memory:
        free_bytes = memory["bytes_limit"] * MEMORY_SHARE - memory["bytes_in_use"]
        n_blocks = max(1, int(free_bytes / block_bytes))
    if n_blocks * per_block < context:
        raise BadInput(
            f"a sequence of {context:,} tokens does not fit: beside the weights there is memory "
            f"for {n_blocks * per_block:,} tokens ({units.show_bytes(block_bytes)} for "
            f"{per_block}). Lower --context, or use --kv-dtype int8."
        )
    made = []
    for one_block in forwards:
        mesh = one_block.engine.table.mesh
        by_layer = mesh.platform == "cpu" and mesh.jax_mesh.size == 1
        made.append(replace(one_block, n_blocks=n_blocks, by_layer=by_layer))
    return made
