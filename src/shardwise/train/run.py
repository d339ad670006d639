"""A plan and tokens -> a run: everything that is needed is put together here, then looped over."""

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
from shardwise.train.consensus import same
from shardwise.train.data_order import Order, order, read_mixture
from shardwise.train.devices import Joined, devices_for, is_first, join
from shardwise.train.heartbeat import gone
from shardwise.train.metrics import Hooks, Metrics, Run
from shardwise.train.recipe import Recipe
from shardwise.train.signals import listen
from shardwise.train.tensorboard import Board, drawn

if TYPE_CHECKING:
    from shardwise.runtime.training.step import TrainStep
    from shardwise.train.checkpoint import Checkpoints
    from shardwise.train.loop import Loop

METRICS = "metrics.jsonl"

# What errors begin with that the runtime raises where a connection to another process breaks.
BROKEN = ("ABORTED", "CANCELLED", "DEADLINE_EXCEEDED", "INTERNAL", "UNAVAILABLE", "UNKNOWN")


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """Where a run is saved.

    Args:
        folder: of checkpoints; empty for none.
        every: steps between them; 0 for one at the end alone.
        resume: go on with the newest checkpoint of the folder.
    """

    folder: str = ""
    every: int = 0
    resume: bool = False

    def __post_init__(self) -> None:
        if not self.folder and (self.every or self.resume):
            raise BadInput("--checkpoint-every and --resume need --checkpoint FOLDER.")
        if self.every < 0:
            raise BadInput(f"a checkpoint every {self.every} steps is not possible: 1 or more.")


def train(
    plan: Plan,
    *,
    data: str,
    steps: int | None = None,
    recipe: Recipe | None = None,
    saving: Saving | None = None,
    seed: int = 0,
    log: str = "",
    joined: Joined | None = None,
    sample: str | None = None,
    start: str = "",
    export: str = "",
    tensorboard: str = "",
    hooks: Hooks | None = None,
) -> Run:
    """Train the model of a plan as the plan says, on the devices that are there.

    Args:
        data: folder of tokens, or several with weights: `code=0.7,text=0.3`.
        steps: of the whole run; where neither this nor a recipe is given, the plan's tokens say it.
        recipe: learning rate, clipping and what is done about bad steps.
        saving: checkpoints.
        seed: of the first weights and of the order of sequences.
        log: file for one JSON object a step; where it is empty, `metrics.jsonl` of the checkpoints.
        joined: how several processes find each other.
        sample: begin of a text that the trained model shall go on with.
        start: folder of a published model, config.json and *.safetensors, whose weights are the
            first ones; empty for random ones.
        export: folder that gets such files of the last weights; empty for none.
        tensorboard: folder that gets event files with the same numbers; empty for none.
        hooks: who is told.

    Raises:
        BadInput: other devices, data of another vocabulary, a plan that is not run yet.
        BadFile: files that cannot be read or written.
        CheckFailed: a step gave numbers that are none, and the recipe says stop.
        MissingExtra: JAX, or what reads data and writes checkpoints or events, is not installed.
    """
    if not isinstance(plan, Plan):
        raise BadInput("a plan of serving is not trained; plan with --train.")
    recipe = recipe or Recipe(steps=steps_of(plan) if steps is None else steps)
    saving, case, hooks = saving or Saving(), rebuild(plan), hooks or Hooks()
    raise_all(BadInput, _not_trained(case, recipe))
    with contextlib.ExitStack() as stack:
        ending = stack.enter_context(listen())
        join(joined or Joined(), hooks.on_note)
        devices = devices_for(case.system, plan.model.name)
        sequences = _sequences(plan, data, seed)
        same(
            plan=encode(plan),
            recipe=recipe,
            seed=seed,
            data=sequences.identity,
            checkpoints=saving,
            start=start,
        )
        hooks = _spoken(hooks)
        _unbalanced(case, hooks)
        if start or export:
            pretrained.check(case.model, start, export)
        if ending.by:  # nothing is lost yet
            raise KeyboardInterrupt
        if tensorboard and is_first():
            board = Board(tensorboard, hooks.on_note)
            stack.callback(board.close)
            hooks = drawn(board, hooks)
        loop, compile_s = _prepared(
            plan, case, devices, recipe, saving, sequences, seed, start, sample, hooks
        )
        loop.ending = ending
        loop.metrics = Metrics(_log_file(log, saving), hooks.on_note)
        stack.callback(loop.metrics.close)
        if loop.checkpoints is not None:
            stack.callback(loop.checkpoints.close)
        first = loop.step
        ended = _run(loop)
        written = _last(loop.checkpoints, loop.step)
        if export:
            hooks.on_note(pretrained.export(export, loop.made, loop.state, start))
        text = _sample(loop, sample) if sample is not None else None
    return Run(
        name=plan.model.name,
        hardware=plan.hardware.name,
        first=first,
        done=loop.step,
        ended=ended,
        compile_s=compile_s,
        step_s=statistics.median(loop.seconds[1:] or loop.seconds) if loop.seconds else None,
        planned=plan.step.expected,
        losses=tuple(loop.losses),
        checkpoint=written,
        sample=text,
    )


def _run(loop: Loop) -> str:
    """As `Loop.run`; a run of several processes ends when one of them is gone."""
    import jax

    try:
        return loop.run()
    except (jax.errors.JaxRuntimeError, ValueError) as error:  # either, by who read the array
        if jax.process_count() > 1 and str(error).startswith(BROKEN):
            gone(error)
        raise


def steps_of(plan: Plan) -> int:
    if plan.workload.tokens is None:
        raise BadInput("how long to train is not said: --steps N, or a plan with --tokens.")
    return max(1, round(plan.workload.tokens / plan.workload.tokens_per_step))


def _not_trained(case: Case, recipe: Recipe) -> list[str]:
    """What compiles, and whose numbers would be none: narrow dtypes, which here have no scales."""
    words = ("weights", "compute", "gradients", "moments", "master")
    asked = {word: getattr(case.job, word) for word in words}
    found = [
        f"{word} {dtype} is planned for, but not trained: bf16."
        for word, dtype in asked.items()
        if dtype is not None and units.bytes_per_element(dtype) < 2
    ]
    if recipe.capacity and not _experts(case):
        found.append(f"capacity is the room of experts; {case.model.name} has none.")
    return found


def _experts(case: Case) -> list[Moe]:
    return [g.layer.ffn for g in case.model.groups if isinstance(g.layer.ffn, Moe)]


def _unbalanced(case: Case, hooks: Hooks) -> None:
    if asked := max((m.routing.aux_loss for m in _experts(case)), default=0.0):
        hooks.on_note(
            f"experts are trained without the loss that balances them (coefficient {asked:g})."
        )


def _sequences(plan: Plan, data: str, seed: int) -> Order:
    sets, weights = read_mixture(data)
    for tokens in sets:
        if tokens.vocab > plan.model.vocab:
            raise BadInput(
                f"{tokens.folder} has tokens up to {tokens.vocab:,} ({tokens.about['tokenizer']}), "
                f"and {plan.model.name} a vocabulary of {plan.model.vocab:,}. Tokenize with the "
                f"model's tokenizer.json, or plan a model with vocab={tokens.vocab} or more."
            )
        if tokens.about["tokenizer"] != sets[0].about["tokenizer"]:
            raise BadInput(f"{tokens.folder} and {sets[0].folder} have different tokenizers.")
    work = plan.workload
    return order(sets, weights, seq=work.seq, batch=work.batch, seed=seed)


def _prepared(
    plan: Plan,
    case: Case,
    devices: Any,
    recipe: Recipe,
    saving: Saving,
    sequences: Order,
    seed: int,
    start: str,
    sample: str | None,
    hooks: Hooks,
) -> tuple[Loop, float]:
    """The loop before its first step, and the seconds of the compile."""
    from shardwise.runtime.training.programs import step_of
    from shardwise.train.guard import update_of
    from shardwise.train.loop import Loop
    from shardwise.train.portable import Portable
    from shardwise.train.sample import opening
    from shardwise.train.signals import Ending

    made = step_of(
        case,
        devices,
        capacity=recipe.capacity,
        update=update_of(recipe),
        collectives=recipe.collectives,
    )
    if sample is not None:
        opening(made, sequences.sets[0].tokenizer(), sample)
    checkpoints, portable = _checkpoints(saving, hooks.on_note), Portable(step=made)
    found = checkpoints.restore(portable.shapes(), sequences.identity) if checkpoints else None
    if found is not None:
        hooks.on_note(f"goes on after step {found.step} of {saving.folder}.")
        if found.forgot:
            hooks.on_note("what sums in int8 had lost there is of another layout: it starts at 0.")
    elif saving.resume:
        hooks.on_note(f"no checkpoint is in {saving.folder}: it starts at step 1.")
    hooks.on_stage("compiling the step")
    begun = time.perf_counter()
    compiled = compiled_step(made)
    compile_s = time.perf_counter() - begun
    hooks.on_stage("")
    loop = Loop(
        plan=plan,
        made=made,
        recipe=recipe,
        order=sequences,
        compiled=compiled,
        state=portable.back(found.state) if found else pretrained.first(made, seed, start),
        step=found.step if found else 0,
        hooks=hooks,
        metrics=Metrics("", hooks.on_note),
        checkpoints=checkpoints,
        every=saving.every,
        ending=Ending(),
    )
    return loop, compile_s


def compiled_step(made: TrainStep) -> Any:
    """`(state, batch) -> (state, what is told of it)`, compiled; the state is given away.

    A bad step changes nothing of the state: what sums of its gradients lost is forgotten.
    """
    import jax
    import jax.numpy as jnp

    function = made.function()

    def run(state: Any, given: Any) -> tuple[Any, dict[str, Any]]:
        before = state
        state, loss = function(state, given)
        guard = state["moments"]
        if "lost" in state:
            bad = guard.bad > before["moments"].bad
            kept = lambda old, new: jnp.where(bad, old, new)
            state = state | {"lost": jax.tree.map(kept, before["lost"], state["lost"])}
        told = {"norm": guard.norm, "usual": guard.usual, "good": guard.good, "bad": guard.bad}
        return state, {"loss": loss, **told}

    return jax.jit(run, donate_argnums=0).lower(*made.shapes()).compile()


def _checkpoints(saving: Saving, say: Callable[[str], None]) -> Checkpoints | None:
    if not saving.folder:
        return None
    from shardwise.train.checkpoint import Checkpoints

    found = Checkpoints(saving.folder, say)
    if found.steps and not saving.resume:
        raise BadInput(
            f"{saving.folder} has checkpoints of steps {', '.join(map(str, found.steps))}. "
            "Go on with --resume, or name another folder."
        )
    return found


def _last(checkpoints: Checkpoints | None, step: int) -> int | None:
    """The last checkpoint that is whole, once nothing is being written."""
    if checkpoints is None:
        return None
    checkpoints.wait()
    return max(checkpoints.steps, default=None)


def _log_file(log: str, saving: Saving) -> str:
    if not is_first():
        return ""
    return log or (f"{saving.folder}/{METRICS}" if saving.folder else "")


def _spoken(hooks: Hooks) -> Hooks:
    """Of several processes one speaks."""
    return hooks if is_first() else Hooks()


def _sample(loop: Loop, begin: str) -> str:
    from shardwise.train.sample import sample

    tokenizer = loop.order.sets[0].tokenizer()
    return sample(loop.made, loop.state["weights"], tokenizer, begin)
