"""The engines of a model: on the machine of a plan, or on the devices that are here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwise.errors import BadInput, raise_all
from shardwise.models import ModelConfig
from shardwise.plan.schema.serving import ServingPlan
from shardwise.plan.serving.unserved import unserved
from shardwise.serve.engine_options import EngineOptions
from shardwise.serve.model_files import ServedModel
from shardwise.serve.planned_phases import disaggregated_states
from shardwise.strategy.mesh import Mesh
from shardwise.strategy.serving_layout import ServeLayout
from shardwise.workload import Serve, cache_dtype_for

if TYPE_CHECKING:
    from shardwise.runtime.serving.engine_state import EngineState

INT4_GROUP = 32  # weights that share a scale in int4: blocks of GGUF files are kept as they are
PROBE = "A text by which two tokenizers are compared: 1234 + x_y."


def engine_states(
    model: ServedModel, options: EngineOptions, plan: ServingPlan | None, context: int
) -> tuple[list[EngineState], list[EngineState]]:
    """The engines that compute prompts alone, and the others.

    Raises:
        BadInput: the plan is not served here, or is for another model.
    """
    import jax

    prefill: list[EngineState] = []
    if plan is None:
        states = [_local(model.config, options, context)]
    elif plan.strategy.prefill:
        phase = "decode" if options.prefill_from else ""
        prefill, states = disaggregated_states(plan, "prefill" if options.prefill else phase)
    else:
        states = [_planned(plan)]
    if plan and (prefill + states)[0].config.d_model != model.config.d_model:
        raise BadInput(f"the plan is for {plan.model.name}, and {model.source} has another model.")
    if jax.process_count() > 1 and (prefill or options.prefill or options.prefill_from):
        raise BadInput(
            "engines for prompts alone run in one process each. Start servers with --prefill and "
            "--prefill-from, without --coordinator."
        )
    if options.prefill and not prefill:
        return states, []
    return prefill, states


def _local(
    config: ModelConfig,
    options: EngineOptions,
    context: int,
    devices: Sequence[Any] | None = None,
    n_pools: int = 1,
) -> EngineState:
    """One engine on as many devices as divide the model's heads and widths, of those that are here.

    Args:
        n_pools: groups of chips to which sequences are distributed.
    """
    import jax

    from shardwise.runtime.devices import PLATFORMS, local_devices
    from shardwise.runtime.layout.mesh import role_mesh
    from shardwise.runtime.serving.engine_state import EngineState, engine_table
    from shardwise.runtime.serving.kv_layout import kv_heads, split_tensor

    devices = devices or local_devices()
    is_cpu = devices[0].platform == PLATFORMS["cpu"]
    n = max(n for n in range(1, len(devices) // n_pools + 1) if _divides(n, config))
    if n * n_pools < len(devices) and jax.process_count() > 1:
        raise BadInput(
            f"{config.name} can be split over {n} of the {len(devices)} devices of all processes. "
            "Start processes with as many devices as divide its heads and the widths of its "
            "feed-forward layers, or serve a plan."
        )
    layout = ServeLayout(mesh=Mesh(tensor=n, expert=n_pools), kv="sequence")
    chips = np.array(devices[: n * n_pools])
    mesh = split_tensor(role_mesh(layout.sizes, chips), kv_heads(config))
    weights = options.weights or config.checkpoint_dtype
    job = Serve(
        context=context,
        weights=weights,
        kv=options.kv or (cache_dtype_for(weights, on_cpu=True) if is_cpu else "bf16"),
        compute="fp32" if is_cpu else "bf16",
    )
    table = engine_table(layout, mesh)
    return EngineState(config=config, job=job, layout=layout, table=table, batch=1)


def _divides(n: int, config: ModelConfig) -> bool:
    """Whether n chips of `tensor` can share a model."""
    widths = [ffn.d_ff for ffn, _ in config.ffns]
    widths += [moe.d_ff_shared for moe, _ in config.moes]
    return all(width % n == 0 for width in widths) and all(
        a.n_heads % n == 0 and (a.n_kv_heads % n == 0 or n % a.n_kv_heads == 0)
        for a, _ in config.attentions
    )


def _planned(plan: ServingPlan) -> EngineState:
    """The engine of a plan, on the devices where its placement puts the chips.

    Raises:
        BadInput: the plan has several engines, or one that the runtime does not support.
    """
    from shardwise.plan.serving.rebuild import rebuild
    from shardwise.runtime.devices import devices_for
    from shardwise.runtime.serving.programs import engine_state

    deployment = rebuild(plan)[1]
    server = deployment.server
    problems = unserved(server)
    if server.layout.sizes["data"] > 1:
        problems.append(
            f"{server.layout.sizes['data']} engines: one process serves one. Plan for "
            f"{server.layout.n_chips} chips, and run a server on each {server.layout.n_chips}."
        )
    raise_all(BadInput, problems)
    devices = devices_for(server.system, plan.model.name, "--serve --prompt N --output N")
    return engine_state(server, deployment.batch, devices)


def with_dtypes(state: EngineState, options: EngineOptions) -> EngineState:
    """A planned engine with the dtypes of options."""
    job = state.job
    job = replace(job, weights=options.weights or job.weights, kv=options.kv or job.kv)
    return replace(state, job=job)


def state_of(model: ServedModel, state: EngineState, context: int) -> EngineState:
    """The engine of a model, for requests up to a context."""
    dtypes = state.job
    job = Serve(context=context, weights=dtypes.weights, kv=dtypes.kv, compute=dtypes.compute)
    group = INT4_GROUP if job.weights == "int4" else None
    return replace(state, config=model.config, job=job, group=group)


def small_engine(
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
    return _local(small.config, options, state.job.context, devices, state.n_pools)
