"""`sw.train`: sets up a training run from a plan and tokenized data, and runs it."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardwise import units
from shardwise.errors import BadInput, raise_all
from shardwise.models import Moe
from shardwise.plan.schema.json_output import encode
from shardwise.plan.schema.training import Plan
from shardwise.plan.training.rebuild import rebuild
from shardwise.search.training.problem import Case
from shardwise.train import pretrained
from shardwise.train.consensus import require_equal
from shardwise.train.data_order import DataOrder, data_order, read_mixture
from shardwise.train.devices import Rendezvous, devices_for, is_first, join
from shardwise.train.heartbeat import exit_after_peer
from shardwise.train.metrics import Hooks, MetricsFile, Run
from shardwise.train.recipe import Recipe
from shardwise.train.signals import catch_signals
from shardwise.train.tensorboard import EventFile, with_events

if TYPE_CHECKING:
    from shardwise.runtime.training.step import TrainStep
    from shardwise.train.checkpoint import Checkpoints
    from shardwise.train.loop import Loop

METRICS = "metrics.jsonl"

# Starts of errors that XLA's runtime raises when a connection to another process breaks.
CONNECTION_ERRORS = (
    "ABORTED",
    "CANCELLED",
    "DEADLINE_EXCEEDED",
    "INTERNAL",
    "UNAVAILABLE",
    "UNKNOWN",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointOptions:
    """Where and how often a run is saved.

    Args:
        folder: folder of the checkpoints; empty to save none.
        every: steps between checkpoints; 0 to save at the end only.
        resume: whether to continue from the newest checkpoint in the folder.
    """

    folder: str = ""
    every: int = 0
    resume: bool = False

    def __post_init__(self) -> None:
        if not self.folder and (self.every or self.resume):
            raise BadInput("--checkpoint-every and --resume need --checkpoint FOLDER.")
        if self.every < 0:
            raise BadInput(f"--checkpoint-every {self.every} is below 0.")


def train(
    plan: Plan,
    *,
    data: str,
    steps: int | None = None,
    recipe: Recipe | None = None,
    saving: CheckpointOptions | None = None,
    seed: int = 0,
    log: str = "",
    joined: Rendezvous | None = None,
    sample: str | None = None,
    start: str = "",
    export: str = "",
    tensorboard: str = "",
    hooks: Hooks | None = None,
) -> Run:
    """Train the model of a plan under its layout, on the available devices.

    Args:
        plan: a training plan.
        data: folder of tokens, or several with the share of each: `code=0.7,text=0.3`.
        steps: number of steps in the run if `recipe` is None; None to train on the number of tokens
            in the plan.
        recipe: learning rate, clipping, and what happens after a bad step.
        saving: folder and interval of checkpoints; None to save none.
        seed: seed of the initial weights and of the order of sequences.
        log: file for one JSON object per step; empty for `metrics.jsonl` beside the checkpoints.
        joined: address at which the processes of a run find each other; None for one process, or
            to let JAX detect it.
        sample: prompt for the trained model to continue; None for no sample.
        start: folder of a published model (config.json and *.safetensors) with the initial weights;
            empty for random weights.
        export: folder to write the final weights to, in the same format; empty for none.
        tensorboard: folder for event files of TensorBoard; empty for none.
        hooks: callbacks that receive the progress.

    Raises:
        BadInput: the devices or the data do not fit the plan, or the runtime does not support it.
        BadFile: a file cannot be read or written.
        CheckFailed: the loss or gradients became NaN or inf, and the recipe says to stop.
        MissingExtra: JAX, or a package for data, checkpoints or events, is not installed.
    """
    if not isinstance(plan, Plan):
        raise BadInput("a serving plan cannot be trained; plan with --train.")
    if recipe is None:
        recipe = Recipe(steps=steps_from_plan(plan) if steps is None else steps)
    saving = saving or CheckpointOptions()
    hooks = hooks or Hooks()
    case = rebuild(plan)
    raise_all(BadInput, _not_trainable(case, recipe))
    with contextlib.ExitStack() as stack:
        stop_request = stack.enter_context(catch_signals())
        join(joined or Rendezvous(), hooks.on_note)
        devices = devices_for(case.system, plan.model.name)
        order = _data_order(plan, data, seed)
        require_equal(
            plan=encode(plan),
            recipe=recipe,
            seed=seed,
            data=order.identity,
            checkpoints=saving,
            start=start,
        )
        if not is_first():
            hooks = Hooks()
        _note_unbalanced(case, hooks)
        if start or export:
            pretrained.check_folders(case.model, start, export)
        if stop_request.signal:  # nothing has been computed that could be saved
            raise KeyboardInterrupt
        if tensorboard and is_first():
            events = EventFile(tensorboard, hooks.on_note)
            stack.callback(events.close)
            hooks = with_events(events, hooks)
        loop, compile_s = _prepare(
            plan, case, devices, recipe, saving, order, seed, start, sample, hooks
        )
        loop.stop_request = stop_request
        loop.metrics = MetricsFile(_log_file(log, saving), hooks.on_note)
        stack.callback(loop.metrics.close)
        if loop.checkpoints is not None:
            stack.callback(loop.checkpoints.close)
        first_step = loop.step
        ending = _run(loop)
        last_checkpoint = _last_checkpoint(loop.checkpoints)
        if export:
            note = pretrained.export_weights(export, loop.train_step, loop.state, start)
            hooks.on_note(note)
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
    )


def _run(loop: Loop) -> str:
    """Run the loop; if another process of the run ends, end this process, too."""
    import jax

    try:
        return loop.run()
    except (jax.errors.JaxRuntimeError, ValueError) as error:  # JAX raises one or the other
        if jax.process_count() > 1 and str(error).startswith(CONNECTION_ERRORS):
            exit_after_peer(error)
        raise


def steps_from_plan(plan: Plan) -> int:
    """Return the number of steps that the plan's tokens take, at least 1.

    Raises:
        BadInput: the plan does not say how many tokens to train on.
    """
    if plan.workload.tokens is None:
        raise BadInput("the length of the run is missing: --steps N, or a plan with --tokens.")
    return max(1, round(plan.workload.tokens / plan.workload.tokens_per_step))


def _not_trainable(case: Case, recipe: Recipe) -> list[str]:
    """List what training does not support, although it would compile.

    Dtypes of 8 or fewer bits need scales, which the training step does not have.
    """
    problems = []
    for role in ("weights", "compute", "gradients", "moments", "master"):
        dtype = getattr(case.job, role)
        if dtype is not None and units.bytes_per_element(dtype) < 2:
            problems.append(
                f"{role} in {dtype}: the planner supports it, training does not yet. Use bf16."
            )
    if recipe.capacity and not _experts(case):
        problems.append(f"capacity applies to experts; {case.model.name} has none.")
    return problems


def _experts(case: Case) -> list[Moe]:
    blocks = [group.layer.ffn for group in case.model.groups]
    return [block for block in blocks if isinstance(block, Moe)]


def _note_unbalanced(case: Case, hooks: Hooks) -> None:
    """Tell the user if the model's own training recipe has a load-balancing loss."""
    coefficient = max((block.routing.aux_loss for block in _experts(case)), default=0.0)
    if coefficient:
        hooks.on_note(
            "experts are trained without the load-balancing loss of the model (coefficient "
            f"{coefficient:g})."
        )


def _data_order(plan: Plan, data: str, seed: int) -> DataOrder:
    """Open the token sets of `data`, check that they suit the plan, and order their sequences."""
    sets, weights = read_mixture(data)
    for tokens in sets:
        if tokens.vocab > plan.model.vocab:
            tokenizer = tokens.metadata["tokenizer"]
            raise BadInput(
                f"{tokens.folder} has tokens up to {tokens.vocab:,} ({tokenizer}), "
                f"and {plan.model.name} a vocabulary of {plan.model.vocab:,}. Tokenize with the "
                f"model's tokenizer.json, or plan a model with vocab={tokens.vocab} or more."
            )
        if tokens.metadata["tokenizer"] != sets[0].metadata["tokenizer"]:
            raise BadInput(f"{tokens.folder} and {sets[0].folder} have different tokenizers.")
    workload = plan.workload
    return data_order(sets, weights, seq=workload.seq, batch=workload.batch, seed=seed)


def _prepare(
    plan: Plan,
    case: Case,
    devices: Any,
    recipe: Recipe,
    saving: CheckpointOptions,
    order: DataOrder,
    seed: int,
    start: str,
    sample: str | None,
    hooks: Hooks,
) -> tuple[Loop, float]:
    """Restore or initialize the state and compile the step.

    Returns:
        The loop, ready to run, and the seconds of the compile.
    """
    from shardwise.runtime.training.programs import step_of
    from shardwise.train.guard import guarded_optimizer
    from shardwise.train.loop import Loop
    from shardwise.train.portable import PortableState
    from shardwise.train.sample import encode_prompt
    from shardwise.train.signals import StopRequest

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
    checkpoints = _checkpoints(saving, hooks.on_note)
    restored = None
    if checkpoints:
        restored = checkpoints.restore(portable.shapes(), order.identity)
    if restored is not None:
        hooks.on_note(f"resumes after step {restored.step} of {saving.folder}.")
        if restored.residuals_reset:
            hooks.on_note("the int8 error feedback there is of another layout: it starts at 0.")
    elif saving.resume:
        hooks.on_note(f"{saving.folder} has no checkpoint: the run starts at step 1.")
    hooks.on_stage("compiling the step")
    started_s = time.perf_counter()
    compiled = compile_step(train_step)
    compile_s = time.perf_counter() - started_s
    hooks.on_stage("")
    if restored is not None:
        n_done = restored.step
        state = portable.to_step(restored.state)
    else:
        n_done = 0
        state = pretrained.initial_state(train_step, seed, start)
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
        save_every=saving.every,
        stop_request=StopRequest(),
    )
    return loop, compile_s


def compile_step(train_step: TrainStep) -> Any:
    """Compile the training step `(state, batch) -> (state, scalars)`; the state is donated.

    The scalars are `loss` and the fields norm, usual, good and bad of `GuardState`. A bad step
    changes no weights, optimizer state or residuals of int8 gradient sums.
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

    return jax.jit(run, donate_argnums=0).lower(*train_step.shapes()).compile()


def _checkpoints(saving: CheckpointOptions, on_note: Callable[[str], None]) -> Checkpoints | None:
    if not saving.folder:
        return None
    from shardwise.train.checkpoint import Checkpoints

    checkpoints = Checkpoints(saving.folder, on_note)
    if checkpoints.steps and not saving.resume:
        raise BadInput(
            f"{saving.folder} has checkpoints of steps {', '.join(map(str, checkpoints.steps))}. "
            "Continue with --resume, or name another folder."
        )
    return checkpoints


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
