"""`sw.train`: sets up a training run from a plan and tokenized data, and runs it."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from shardwise.errors import BadInput
from shardwise.plan.schema.json_output import encode
from shardwise.plan.schema.training import Plan
from shardwise.plan.training.rebuild import rebuild
from shardwise.runtime.compile_cache import kept_programs
from shardwise.runtime.devices import devices_for
from shardwise.runtime.processes.consensus import require_equal
from shardwise.runtime.processes.heartbeat import exit_after_peer, is_lost_connection
from shardwise.runtime.processes.rendezvous import Rendezvous, is_first, join
from shardwise.runtime.recording import STEPS_BEFORE, Recorder
from shardwise.search.training.problem import Case
from shardwise.train import pretrained
from shardwise.train.checks import check_inputs
from shardwise.train.data_order import DataOrder, data_order, read_mixture
from shardwise.train.device_memory import require_memory
from shardwise.train.metrics import Hooks, MetricsFile, Run
from shardwise.train.options import CheckpointOptions, default_recipe, record_of
from shardwise.train.recipe import Recipe
from shardwise.train.requirements import require_jax
from shardwise.train.rescue import export_or_save
from shardwise.train.run_folder import RunRecord, changes, locked, write_record
from shardwise.train.signals import catch_signals
from shardwise.train.tensorboard import EventFile, with_events

if TYPE_CHECKING:
    from shardwise.runtime.training.step import TrainStep
    from shardwise.train.checkpoint import Checkpoints
    from shardwise.train.loop import Loop

METRICS = "metrics.jsonl"
MANY_TOKENS = 1 << 29  # whose check takes seconds
RESUME = "Start all of them again with --resume; saved checkpoints are complete."
MOST_STEPS_BEFORE = 20  # a trace
NOT_RECORDED = "no step was recorded for --profile: the run ended before the steps of its trace."
COMPILING = "compiling the step"  # the stage before the first step


def train(
    plan: Plan,
    *,
    data: str = "",
    steps: int | None = None,
    recipe: Recipe | None = None,
    saving: CheckpointOptions | None = None,
    seed: int | None = None,
    log: str = "",
    joined: Rendezvous | None = None,
    sample: str | None = None,
    start: str = "",
    export: str = "",
    tensorboard: str = "",
    profile: str = "",
    hooks: Hooks | None = None,
) -> Run:
    """Train the model of a plan under its layout, on the available devices.

    Args:
        plan: a training plan.
        data: folder of tokens, or several with the share of each: `code=0.7,text=0.3`. Empty for
            those of the run that is resumed.
        steps: number of steps in the run if `recipe` is None; None for those of the run that is
            resumed, else to train on the number of tokens in the plan.
        recipe: learning rate, clipping, and what happens after a bad step; None for that of the
            run that is resumed, else for the defaults.
        saving: folder and interval of checkpoints; None to save none.
        seed: seed of the initial weights and of the order of sequences; None for that of the run
            that is resumed, else 0.
        log: file for one JSON object per step; empty for `metrics.jsonl` beside the checkpoints.
        joined: address at which the processes of a run find each other; None for one process, or
            to let JAX detect it.
        sample: prompt for the trained model to continue; None for no sample.
        start: folder of a published model (config.json and safetensors files) with the initial
            weights; empty for random weights.
        export: folder to write the final weights to, in the same format; empty for none.
        tensorboard: folder for event files of TensorBoard; empty for none.
        profile: folder for a trace of five steps, see `_steps_before`; empty for none.
        hooks: callbacks that receive the progress.

    Raises:
        BadInput: the devices or the data do not fit the plan, or the runtime does not support it.
        BadFile: a file cannot be read or written.
        CheckFailed: the loss or gradients became NaN or inf, and the recipe says to stop.
        MissingExtra: JAX, or a package for data, checkpoints or events, is not installed.
    """
    if not isinstance(plan, Plan):
        raise BadInput("a serving plan cannot be trained; plan with --train.")
    saving = saving or CheckpointOptions()
    hooks = hooks or Hooks()
    joined = joined or Rendezvous()
    earlier = saving.record()
    if recipe is None:
        recipe = default_recipe(plan, earlier, steps)
    export = export or (earlier.export if earlier else "")
    check_inputs(
        plan,
        recipe,
        data=data,
        start=start,
        earlier=earlier,
        resume=saving.resume,
        folders=[
            (saving.folder, "checkpoints"),
            (tensorboard, "event files"),
            (profile, "the trace"),
        ],
        export=export,
        log=log,
    )
    record = record_of(recipe, data, seed, start, saving, earlier, export)
    case = rebuild(plan)
    with contextlib.ExitStack() as stack:
        stop_request = stack.enter_context(catch_signals())
        require_jax()
        join(joined, hooks.on_note, RESUME)
        devices = devices_for(case.system, plan.model.name)
        stack.enter_context(kept_programs())
        order = _data_order(plan, record.data, record.seed, hooks.on_stage)
        require_equal(
            plan=encode(plan),
            recipe=recipe,
            seed=record.seed,
            data=order.identity,
            checkpoints=saving,
            start=record.start,
        )
        if not is_first():
            hooks = Hooks()
        lock = locked(saving.folder, is_first=is_first(), on_note=hooks.on_note)
        stack.enter_context(lock)
        _note_unbalanced(case, hooks)
        if stop_request.signal:  # nothing has been computed that could be saved
            raise KeyboardInterrupt
        if tensorboard and is_first():
            events = EventFile(tensorboard, hooks.on_note)
            stack.callback(events.close)
            hooks = with_events(events, hooks)
        metrics = MetricsFile(_log_file(log, saving), hooks.on_note)
        stack.callback(metrics.close)
        if saving.folder and earlier is not None:
            for change in changes(saving.folder, record, earlier, plan):
                hooks.on_note(f"resumes with {change}.")
        loop, compile_s = _prepare(plan, case, devices, record, saving, order, sample, hooks)
        loop.stop_request = stop_request
        loop.metrics = metrics
        loop.recorder = Recorder(
            profile if is_first() else "", plan, first=_steps_before(recipe.steps - loop.step)
        )
        stack.callback(loop.recorder.close)
        if loop.checkpoints is not None:
            stack.callback(loop.checkpoints.close)
        first_step = loop.step
        ending = _run(loop)
        last_checkpoint = _last_checkpoint(loop.checkpoints)
        if export:
            hooks.on_note(export_or_save(export, loop, record, last_checkpoint))
        loop.recorder.close()
        if profile and is_first() and not loop.recorder.has_recorded:
            hooks.on_note(NOT_RECORDED)
        text = None
        if sample is not None:
            text = _sample(loop, sample)
    median_s = None
    if loop.seconds:
        median_s = statistics.median(loop.seconds[1:] or loop.seconds)
    return Run(
        name=plan.model.name,
        hardware=plan.hardware.name,
        first=first_step,
        done=loop.step,
        ended=ending,
        compile_s=compile_s,
        step_s=median_s,
        planned=plan.step.expected,
        losses=tuple(loop.losses),
        checkpoint=last_checkpoint,
        sample=text,
        profile=profile if loop.recorder.has_recorded else None,
    )


def _run(loop: Loop) -> str:
    """Run the loop; if another process of the run ends, end this process, too."""
    import jax

    try:
        return loop.run()
    except (jax.errors.JaxRuntimeError, ValueError) as error:  # JAX raises one or the other
        if jax.process_count() > 1 and is_lost_connection(error):
            exit_after_peer(error, RESUME)
        raise


def _note_unbalanced(case: Case, hooks: Hooks) -> None:
    """Tell the user if the model's own training recipe has a load-balancing loss."""
    coefficient = max((block.routing.aux_loss for block, _ in case.model.moes), default=0.0)
    if coefficient:
        hooks.on_note(
            "experts are trained without the load-balancing loss of the model (coefficient "
            f"{coefficient:g})."
        )


def _data_order(
    plan: Plan, data: str, seed: int, on_stage: Callable[[str], None] = lambda stage: None
) -> DataOrder:
    """Open the token sets of a run, check that they are undamaged, and order their sequences."""
    sets, weights = read_mixture(data)
    if sum(tokens.n_tokens for tokens in sets) > MANY_TOKENS:
        on_stage("checking the tokens")
    for tokens in sets:
        tokens.verify()
    on_stage("")
    workload = plan.workload
    return data_order(sets, weights, seq=workload.seq, batch=workload.batch, seed=seed)


def _prepare(
    plan: Plan,
    case: Case,
    devices: Any,
    record: RunRecord,
    saving: CheckpointOptions,
    order: DataOrder,
    sample: str | None,
    hooks: Hooks,
) -> tuple[Loop, float]:
    """Restore or initialize the state and compile the step.

    Returns:
        The loop, ready to run, and the seconds of the compile.
    """
    import jax

    from shardwise.runtime.training.programs import step_of
    from shardwise.train.guard import guarded_optimizer
    from shardwise.train.loop import Loop
    from shardwise.train.portable import PortableState
    from shardwise.train.sample import encode_prompt
    from shardwise.train.signals import StopRequest

    recipe = record.recipe
    train_step = step_of(
        case,
        devices,
        capacity=recipe.capacity,
        make_optimizer=guarded_optimizer(recipe),
        collectives=recipe.collectives,
    )
    if sample is not None:
        encode_prompt(train_step, order.sets[0].tokenizer(), sample)
    portable = PortableState(step=train_step)
    checkpoints = _checkpoints(saving, record.keep, hooks.on_note)
    restored = None
    if checkpoints:
        restored = checkpoints.restore(portable.shapes(), order.identity)
    if restored is not None:
        hooks.on_note(f"resumes after step {restored.step} of {saving.folder}.")
        if restored.residuals_reset:
            hooks.on_note("the int8 error feedback there is of another layout: it starts at 0.")
    elif saving.resume:
        hooks.on_note(f"{saving.folder} has no checkpoint: the run starts at step 1.")
    if saving.folder and is_first():
        write_record(saving.folder, record, plan)
    hooks.on_stage(COMPILING)
    started_s = time.perf_counter()
    compiled = compile_step(train_step, _plan_options(plan, case, train_step, hooks.on_note))
    compile_s = time.perf_counter() - started_s
    hooks.on_stage("")
    require_memory(compiled, jax.local_devices()[0], plan.estimate.memory_bytes_per_chip.total)
    if restored is not None:
        n_done = restored.step
        state = portable.to_step(restored.state)
    else:
        n_done = 0
        state = pretrained.initial_state(train_step, record.seed, record.start)
    loop = Loop(
        plan=plan,
        train_step=train_step,
        recipe=recipe,
        order=order,
        compiled=compiled,
        state=state,
        step=n_done,
        hooks=hooks,
        metrics=MetricsFile("", hooks.on_note),
        checkpoints=checkpoints,
        save_every=record.every,
        stop_request=StopRequest(),
    )
    return loop, compile_s


def _plan_options(
    plan: Plan, case: Case, train_step: TrainStep, on_note: Callable[[str], None]
) -> dict[str, str | bool]:
    """The plan's options of the compiler, on devices of the kind that it was made for."""
    from shardwise.runtime.compiler_options import known

    if case.system.chip.kind != train_step.table.mesh.platform.removeprefix("old "):
        return {}
    options = {flag.name: flag.value for flag in plan.xla_flags}
    accepted = known(options)
    if unknown := [name for name in options if name not in accepted]:
        on_note(f"this version of XLA does not know {', '.join(unknown)} of the plan: left out.")
    return accepted


def compile_step(train_step: TrainStep, options: Mapping[str, str | bool] | None = None) -> Any:
    """Compile the training step `(state, batch) -> (state, scalars)`; the state is donated.

    The scalars are `loss` and the fields norm, usual, good and bad of `GuardState`. A bad step
    changes no weights, optimizer state or residuals of int8 gradient sums.

    Args:
        options: options of XLA's compiler.
    """
    import jax
    import jax.numpy as jnp

    function = train_step.function()

    def run(state: Any, batch: Any) -> tuple[Any, dict[str, Any]]:
        before = state
        state, loss = function(state, batch)
        guard = state["moments"]
        if "lost" in state:
            is_bad = guard.bad > before["moments"].bad
            unless_bad = lambda old, new: jnp.where(is_bad, old, new)
            residuals = jax.tree.map(unless_bad, before["lost"], state["lost"])
            state = state | {"lost": residuals}
        scalars = {"norm": guard.norm, "usual": guard.usual, "good": guard.good, "bad": guard.bad}
        return state, {"loss": loss, **scalars}

    lowered = jax.jit(run, donate_argnums=0).lower(*train_step.shapes())
    return lowered.compile(compiler_options=dict(options or {}))


def _checkpoints(
    saving: CheckpointOptions, keep: int, on_note: Callable[[str], None]
) -> Checkpoints | None:
    if not saving.folder:
        return None
    from shardwise.train.checkpoint import Checkpoints

    checkpoints = Checkpoints(saving.folder, on_note, keep)
    if checkpoints.steps and not saving.resume:
        raise BadInput(
            f"{saving.folder} has checkpoints of steps {', '.join(map(str, checkpoints.steps))}. "
            "Continue with --resume, or name another folder."
        )
    return checkpoints


def _steps_before(n_steps: int) -> int:
    """Steps that run before those of a trace: memory and caches make the first ones slower."""
    return max(STEPS_BEFORE, min(MOST_STEPS_BEFORE, n_steps // 4))


def _last_checkpoint(checkpoints: Checkpoints | None) -> int | None:
    """Wait for the checkpoint being written; return the step of the last complete one, or None."""
    if checkpoints is None:
        return None
    checkpoints.wait()
    return max(checkpoints.steps, default=None)


def _log_file(log: str, saving: CheckpointOptions) -> str:
    """Path of the log; "" for none, as in all processes but the first."""
    if not is_first():
        return ""
    if not log and saving.folder:
        return f"{saving.folder}/{METRICS}"
    return log


def _sample(loop: Loop, prompt: str) -> str:
    from shardwise.train.sample import sample

    tokenizer = loop.order.sets[0].tokenizer()
    return sample(loop.train_step, loop.state["weights"], tokenizer, prompt)
