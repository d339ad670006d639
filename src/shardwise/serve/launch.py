"""Start the engine of a model, on the machine of a plan or on the devices that are here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from shardwise.arrays import ceil_div
from shardwise.errors import BadInput
from shardwise.plan.schema.json_output import encode
from shardwise.plan.schema.serving import ServingPlan
from shardwise.runtime.compile_cache import kept_programs
from shardwise.runtime.devices import require_jax
from shardwise.runtime.processes.consensus import require_equal
from shardwise.runtime.recording import Recorder
from shardwise.serve.engine_options import CONTEXT, PASS_TOKENS, SEQUENCES, EngineOptions
from shardwise.serve.engine_states import engine_states, small_engine, state_of, with_dtypes
from shardwise.serve.model_files import ServedModel
from shardwise.simulate.limits import Limits

if TYPE_CHECKING:
    from shardwise.runtime.serving.engine_state import EngineState
    from shardwise.serve.drafts import Drafter
    from shardwise.serve.engine import InferenceEngine
    from shardwise.serve.programs import Programs
    from shardwise.serve.request import Engine

INSTALL_COMMAND = "pip install 'shardwise[serve]'"

E = TypeVar("E", bound="InferenceEngine")
Progress = Callable[[str, int, int], None]  # (what is done, how many are done, of how many)


@contextmanager
def launched(
    model: ServedModel,
    options: EngineOptions,
    plan: ServingPlan | None = None,
    progress: Progress = lambda stage, done, total: None,
    recorder: Recorder | None = None,
) -> Iterator[Engine]:
    """Load a model, compile its programs, and start its engine; it is closed at the end.

    Args:
        recorder: counts the passes, and records some of them; None to record none.

    Raises:
        BadInput: the model or the plan is not served here.
        BadFile: the weights cannot be read.
        MissingExtra: JAX is not installed.
    """
    require_jax("serving", INSTALL_COMMAND)
    from shardwise.serve.disaggregated import DisaggregatedEngine
    from shardwise.serve.engine import InferenceEngine
    from shardwise.serve.followers import leading
    from shardwise.serve.phases import DecodeEngine, PrefillEngine, Prefiller
    from shardwise.serve.remote_prefill import RemotePrefill

    with leading() as leader, ExitStack() as running:
        context = _context(model, options, plan)
        prefill_states, states = engine_states(model, options, plan, context)
        running.enter_context(kept_programs())
        _require_equal(model, options, plan)
        if recorder is not None:
            running.callback(recorder.close)

        def start(kind: type[E], state: EngineState, options: EngineOptions = options) -> E:
            programs, limits, drafter = _load(model, state, options, plan, context, progress)
            if kind is not InferenceEngine:
                programs.compile_transfer()
            leader.lead(_models(programs, drafter))
            engine = kind(programs, limits, drafter)
            if recorder is not None:
                engine.recorder = recorder
            running.callback(engine.close)
            return engine

        without_drafts = replace(options, drafted=0, draft_model=None)
        prefill = [start(PrefillEngine, state, without_drafts) for state in prefill_states]
        prefillers: list[Prefiller] = [*prefill]
        if options.prefill_from:
            remote = RemotePrefill(options.prefill_from)
            remote.watch()
            prefillers.append(remote)
        if not states:
            yield prefill[0]
        elif not prefillers:
            yield start(InferenceEngine, states[0])
        else:
            decode = [start(DecodeEngine, state) for state in states]
            engine = DisaggregatedEngine(prefillers, decode)
            running.callback(engine.close)
            yield engine


def follow(
    model: ServedModel,
    options: EngineOptions,
    plan: ServingPlan | None = None,
    progress: Progress = lambda stage, done, total: None,
) -> None:
    """Be one of several processes of an engine, until the engine of process 0 is closed.

    Raises:
        As `launched`.
    """
    from shardwise.serve.followers import following

    with following() as follower:
        context = _context(model, options, plan)
        _, states = engine_states(model, options, plan, context)
        _require_equal(model, options, plan)
        with kept_programs():
            programs, _, drafter = _load(model, states[0], options, plan, context, progress)
            follower.follow(_models(programs, drafter))


def _models(programs: Programs, drafter: Drafter | None) -> list[Programs]:
    """The programs of an engine, and of the model that drafts for it."""
    from shardwise.serve.draft_model import DraftModel

    return [programs, drafter] if isinstance(drafter, DraftModel) else [programs]


def _load(
    model: ServedModel,
    state: EngineState,
    options: EngineOptions,
    plan: ServingPlan | None,
    context: int,
    progress: Progress,
) -> tuple[Programs, Limits, Drafter | None]:
    """Load the weights of an engine, and compile its programs."""
    from shardwise.serve.cache_sizes import forwards_of, host_blocks
    from shardwise.serve.draft_model import DraftModel
    from shardwise.serve.drafts import NgramDrafter
    from shardwise.serve.programs import Programs

    models = [model]
    states = [state_of(model, with_dtypes(state, options), context)]
    if options.draft_model:
        models.append(options.draft_model)
        small = small_engine(model, options.draft_model, options, state)
        states.append(state_of(options.draft_model, small, context))
    progress("weights", 0, 1)
    weights = [m.weights.load_for(s) for m, s in zip(models, states, strict=True)]
    n_pools = state.n_pools
    sequences = options.sequences or (state.batch if plan else SEQUENCES)
    n = options.drafted
    forwards = forwards_of(states, int(ceil_div(sequences, n_pools)), context + n)
    limits = Limits(
        n_blocks=forwards[0].n_blocks * n_pools,
        block_tokens=forwards[0].block_tokens,
        max_sequences=sequences,
        max_tokens=max(options.pass_tokens or PASS_TOKENS * n_pools, sequences),
        tokens_per_pass=1 + n,
        n_host_blocks=host_blocks(options.host_bytes, forwards),
    )
    of_pool = limits.of_pool(n_pools)
    sizes = {
        "n_host_blocks": limits.n_host_blocks,
        "max_sequences": of_pool.max_sequences,
        "max_tokens": min(of_pool.max_tokens, max(context, of_pool.max_sequences)),
        "max_context": context,
    }
    programs = Programs(forward=forwards[0], weights=weights[0], max_drafted=n, **sizes)
    programs.compile(lambda done, total: progress("programs", done, total))
    drafter: Drafter | None = NgramDrafter() if n else None
    if options.draft_model:
        drafter = DraftModel(forward=forwards[1], weights=weights[1], n_drafted=n, **sizes)
    if drafter is not None:
        drafter.compile(lambda done, total: progress("drafts", done, total))
    return programs, limits, drafter


def _require_equal(model: ServedModel, options: EngineOptions, plan: ServingPlan | None) -> None:
    """Check that all processes of the engine were started alike.

    Raises:
        BadInput: they were not.
    """
    small = options.draft_model
    require_equal(
        model=replace(model.config, source=""),
        plan=plan and encode(plan),
        options=replace(options, draft_model=None),
        draft=small and replace(small.config, source=""),
    )


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
