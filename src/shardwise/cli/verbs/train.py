"""`shardwise train PLAN.json --data DIR`: run a plan in JAX on the devices of this host."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import shardwise as sw
from shardwise import units
from shardwise.cli import options
from shardwise.cli.answer import Answer
from shardwise.cli.inputs import Inputs, load_plan
from shardwise.cli.options import argument, option, output, workload
from shardwise.cli.progress import Stages
from shardwise.cli.streams import reserve_stdout, write_answer
from shardwise.errors import BadInput, CheckFailed, Problems
from shardwise.report.style import Block, showable
from shardwise.report.training import run as report
from shardwise.runtime.processes.rendezvous import Rendezvous, is_first
from shardwise.runtime.recording import STEPS_BEFORE
from shardwise.train.checks import check_inputs
from shardwise.train.metrics import Hooks, Run, StepRecord
from shardwise.train.options import KEEP, CheckpointOptions, steps_from_plan
from shardwise.train.recipe import ON_BAD, SCHEDULES, Recipe
from shardwise.train.run import COMPILING
from shardwise.train.run_folder import RunRecord, read_record

HEADERS_EVERY = 25  # lines of steps between two lines of headers
LINES_EVERY_S = 2.0  # seconds between two lines, unless --log-every counts steps
DEFAULT = Recipe(steps=1)
OPTIONAL_FIELDS = {"clip", "spike", "capacity"}  # of a recipe, for which the option 0 is None
MAX_STEPS = sys.maxsize  # stands for a number of steps that cannot be read

optimization = partial(option, "Optimization")
checkpoints = partial(option, "Checkpoints")


def run(
    plan: Annotated[str, argument("PLAN.json", "a saved plan of training")],
    data: options.TokenFolders = "",
    steps: Annotated[
        str, workload("--steps N", "steps of the whole run  [default: the plan's tokens]")
    ] = "",
    seed: Annotated[
        int | None,
        workload("--seed N", "seed of the weights and of the data's order  [default: 0]"),
    ] = None,
    start: Annotated[
        str, workload("--from DIR", "folder of a published model, to start from its weights")
    ] = "",
    collectives: options.Collectives = "",
    capacity: Annotated[
        float | None,
        workload(
            "--capacity X", "capacity factor of an expert; 0: no token is dropped  [default: 0]"
        ),
    ] = None,
    rate: Annotated[
        float | None, optimization("--rate X", f"peak learning rate  [default: {DEFAULT.rate:g}]")
    ] = None,
    schedule: Annotated[
        str,
        optimization(
            "--schedule WORD",
            f"of the learning rate: {', '.join(SCHEDULES)}  [default: {DEFAULT.schedule}]",
        ),
    ] = "",
    warmup: Annotated[
        str, optimization("--warmup N", "steps in which the rate rises  [default: 0]")
    ] = "",
    clip: Annotated[
        float | None,
        optimization(
            "--clip X", f"largest norm of the gradients; 0: no limit  [default: {DEFAULT.clip:g}]"
        ),
    ] = None,
    decay: Annotated[
        float | None,
        optimization("--decay X", f"weight decay of matrices  [default: {DEFAULT.decay:g}]"),
    ] = None,
    on_bad: Annotated[
        str,
        optimization(
            "--on-bad WORD",
            f"after NaN, inf or a spike of the loss: {' or '.join(ON_BAD)}  "
            f"[default: {DEFAULT.on_bad}]",
        ),
    ] = "",
    spike: Annotated[
        float | None,
        optimization(
            "--spike NATS", "a loss this far above its mean is bad; 0: none is  [default: 0]"
        ),
    ] = None,
    checkpoint: Annotated[str, checkpoints("--checkpoint DIR", "save the run there")] = "",
    checkpoint_every: Annotated[
        str, checkpoints("--checkpoint-every N", "steps between saves  [default: at the end only]")
    ] = "",
    keep: Annotated[
        str, checkpoints("--keep N", f"newest checkpoints to keep  [default: {KEEP}]")
    ] = "",
    resume: Annotated[
        bool, checkpoints("--resume", "continue from the newest save, as the run was started")
    ] = False,
    export: Annotated[
        str,
        checkpoints("--export DIR", "save the last weights: safetensors, config.json"),
    ] = "",
    coordinator: options.Coordinator = "",
    processes: options.Processes = None,
    process: options.Process = None,
    log: Annotated[
        str,
        output("--log FILE", "a JSON object per step  [default: metrics.jsonl of --checkpoint]"),
    ] = "",
    log_every: Annotated[
        str, output("--log-every N", "steps between lines  [default: a line every 2 seconds]")
    ] = "",
    tensorboard: Annotated[str, output("--tensorboard DIR", "event files of TensorBoard")] = "",
    profile: options.ProfileFolder = "",
    sample: Annotated[
        str, output("--sample TEXT", "prompt for the trained model to continue")
    ] = "",
    json: options.Json = False,
) -> Answer:
    """Train the model of a plan under that plan, with the planned step time beside the measured
    one. Ctrl-C and SIGTERM end the run after the step and save it."""
    inputs = Inputs()
    loaded = inputs.read(_training_plan, plan)
    saving = inputs.read(
        _checkpoint_options, folder=checkpoint, every=checkpoint_every, keep=keep, resume=resume
    )
    rendezvous = inputs.read(
        Rendezvous, coordinator=coordinator, processes=processes, process=process
    )
    lines_every = inputs.optional(units.parse_whole, log_every, "--log-every")
    earlier = None
    if resume and checkpoint:
        earlier = inputs.read(read_record, checkpoint)
    settings: dict[str, Any] = {
        "steps": inputs.optional(units.parse_whole, steps, "--steps"),
        "warmup": inputs.optional(units.parse_whole, warmup, "--warmup", low=0),
        "rate": rate,
        "schedule": schedule or None,
        "clip": clip,
        "decay": decay,
        "on_bad": on_bad or None,
        "spike": spike,
        "collectives": collectives or None,
        "capacity": capacity,
    }
    if steps and settings["steps"] is None:  # which is a problem that is told
        settings["steps"] = MAX_STEPS
    recipe = inputs.read(chosen_recipe, loaded, earlier, settings)
    if profile and recipe is not None and recipe.steps <= STEPS_BEFORE:
        inputs.refuse(
            f"--profile records from step {STEPS_BEFORE + 1} on, and the run has "
            f"{recipe.steps:,}: give it more --steps."
        )
    inputs.read(
        check_inputs,
        loaded,
        recipe,
        data=data,
        start=start,
        earlier=earlier,
        resume=resume,
        folders=[(checkpoint, "checkpoints"), (tensorboard, "event files"), (profile, "the trace")],
        export=export,
        log=log,
    )
    inputs.done()
    if coordinator:
        reserve_stdout()
    run_lines = RunLines(loaded, recipe.steps, quiet=json, every=lines_every)
    hooks = Hooks(on_stage=run_lines.stage, on_step=run_lines.step, on_note=_note)
    try:
        result = sw.train(
            loaded,
            data=data,
            recipe=recipe,
            saving=saving,
            seed=seed,
            log=log,
            joined=rendezvous,
            sample=sample or None,
            start=start,
            export=export,
            tensorboard=tensorboard,
            profile=profile,
            hooks=hooks,
        )
    finally:
        run_lines.stages.done()
    blocks = _blocks(result, checkpoint, plan) if is_first() else []
    unsaved = bool(checkpoint) and result.checkpoint != result.done
    exit_code = CheckFailed.exit_code if unsaved else 0
    return Answer(document=lambda: result, blocks=blocks, as_json=json, exit_code=exit_code)


def _blocks(run: Run, checkpoint: str, plan: str) -> Iterator[Block]:
    yield from report.blocks(run, checkpoint, plan)
    if run.profile:
        from shardwise.cli.verbs.profile import short_account

        yield from short_account(run.profile)


def _training_plan(path: str) -> sw.Plan:
    plan = load_plan(path)
    if not isinstance(plan, sw.Plan):
        raise BadInput(f"{path} is a plan of serving; plan with --train.")
    return plan


def _checkpoint_options(folder: str, every: str, keep: str, resume: bool) -> CheckpointOptions:
    inputs = Inputs()
    parsed_every = inputs.optional(units.parse_whole, every, "--checkpoint-every", low=0)
    parsed_keep = inputs.optional(units.parse_whole, keep, "--keep")
    inputs.done()
    return CheckpointOptions(folder=folder, every=parsed_every, keep=parsed_keep, resume=resume)


def chosen_recipe(
    plan: sw.Plan | None, earlier: RunRecord | None, settings: dict[str, Any]
) -> Recipe:
    """The recipe of the settings that are given, else of the resumed run, else the default.

    Args:
        plan: the plan, None if it cannot be read.
        earlier: how the run that is resumed was started; None for a new run.
        settings: field of `Recipe` -> the value of its option, None if it is not given.

    Raises:
        BadInput: values are not possible, or no number of steps is known.
    """
    chosen = {name: value for name, value in settings.items() if value is not None}
    for name in OPTIONAL_FIELDS & chosen.keys():
        chosen[name] = chosen[name] or None
    if earlier is not None:
        return replace(earlier.recipe, **chosen)
    problems = Problems()
    if "steps" not in chosen and plan is not None:
        chosen["steps"] = problems.read(steps_from_plan, plan)
    chosen["steps"] = chosen.get("steps") or MAX_STEPS
    recipe = problems.read(Recipe, **chosen)
    problems.done()
    return recipe


def _note(text: str) -> None:
    """Write a note of the run to stderr."""
    lines = textwrap.fill(text, 80, break_long_words=False, break_on_hyphens=False)
    sys.stderr.write(showable(lines + "\n", sys.stderr))
    sys.stderr.flush()


class RunLines:
    """Writes the lines of a run: its plan, lines of steps, and headers every HEADERS_EVERY lines.

    Args:
        steps: number of steps in the run.
        quiet: write nothing to stdout, which is reserved for a JSON document.
        every: steps between two lines; None for a line every LINES_EVERY_S seconds.
    """

    def __init__(self, plan: sw.Plan, steps: int, *, quiet: bool, every: int | None = None) -> None:
        self.plan = plan
        self.steps = steps
        self.quiet = quiet
        self.every = every
        self.n_lines = 0
        self.stages = Stages()
        self._records: list[StepRecord] = []  # steps since the last line

    def stage(self, stage: str) -> None:
        """Called when a stage, such as compiling, begins; all inputs have been checked by then."""
        if stage == COMPILING and is_first():
            self._write(report.plan_summary(self.plan))
        self.stages.begin(stage)

    def step(self, record: StepRecord) -> None:
        """Called when a step is done; writes a line if one is due."""
        self._records.append(record)
        if not self._is_due(record):
            return
        if self.n_lines % HEADERS_EVERY == 0:
            self._write(report.step_headers(self.steps) + "\n")
        self.n_lines += 1
        self._write(report.step_line(self._records, self.plan.step.expected) + "\n")
        self._records = []

    def _is_due(self, record: StepRecord) -> bool:
        """Whether the first, the last or a bad step is told, or enough steps without a line."""
        if record.bad or self.n_lines == 0 or record.step == self.steps:
            return True
        if self.every is not None:
            return record.step % self.every == 0
        return sum(step.step_s for step in self._records) >= LINES_EVERY_S

    def _write(self, text: str) -> None:
        if not self.quiet:
            write_answer(showable(text, sys.stdout))
