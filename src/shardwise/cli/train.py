"""`shardwise train PLAN.json --data DIR`: run a plan in JAX on the devices that are there."""

from __future__ import annotations

import sys
import textwrap
from typing import Annotated

import typer

import shardwise as sw
from shardwise.cli.answer import Answer
from shardwise.cli.command import RATES, TOLD, WORK, Json
from shardwise.cli.inputs import Inputs
from shardwise.cli.stages import Stages
from shardwise.cli.streams import answers_only, write_answer
from shardwise.errors import BadInput
from shardwise.report.style import showable
from shardwise.report.training import run as report
from shardwise.runtime.program import COLLECTIVES
from shardwise.train.devices import Rendezvous, is_first
from shardwise.train.metrics import Hooks, StepRecord
from shardwise.train.recipe import ON_BAD, SCHEDULES, Recipe
from shardwise.train.run import CheckpointOptions, steps_from_plan

HEADS_EVERY = 25
SAVED = "Checkpoints"


def run(
    plan: Annotated[str, typer.Argument(metavar="PLAN.json", help="a saved plan of training")],
    data: Annotated[
        str,
        typer.Option(
            metavar="DIR[=W],...",
            help="tokens of: shardwise data tokenize; several with weights",
            rich_help_panel=WORK,
        ),
    ] = "",
    steps: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="of the whole run  [default: the plan's tokens]", rich_help_panel=WORK
        ),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="of weights and of the order of data")] = 0,
    rate: Annotated[
        float, typer.Option(metavar="X", help="the highest learning rate", rich_help_panel=RATES)
    ] = 3e-4,
    schedule: Annotated[
        str, typer.Option(metavar="WORD", help=", ".join(SCHEDULES), rich_help_panel=RATES)
    ] = "cosine",
    warmup: Annotated[
        int, typer.Option(metavar="N", help="steps in which the rate rises", rich_help_panel=RATES)
    ] = 0,
    clip: Annotated[
        float,
        typer.Option(
            metavar="X", help="largest norm of the gradients; 0: no limit", rich_help_panel=RATES
        ),
    ] = 1.0,
    decay: Annotated[
        float, typer.Option(metavar="X", help="weight decay of matrices", rich_help_panel=RATES)
    ] = 0.1,
    on_bad: Annotated[
        str,
        typer.Option(
            metavar="WORD",
            help=f"of a step with NaN or a spike: {' or '.join(ON_BAD)}",
            rich_help_panel=RATES,
        ),
    ] = "stop",
    spike: Annotated[
        float,
        typer.Option(
            metavar="NATS",
            help="a loss this far above its mean is bad; 0: none is",
            rich_help_panel=RATES,
        ),
    ] = 0.0,
    collectives: Annotated[
        str,
        typer.Option(
            metavar="WORD",
            help=f"who chooses them: {' or '.join(COLLECTIVES)} (XLA's partitioner)",
            rich_help_panel=WORK,
        ),
    ] = "plan",
    capacity: Annotated[
        float,
        typer.Option(
            metavar="X",
            help="room of an expert, of an even share; 0: no token is dropped",
            rich_help_panel=WORK,
        ),
    ] = 0.0,
    checkpoint: Annotated[
        str, typer.Option(metavar="DIR", help="save the run there", rich_help_panel=SAVED)
    ] = "",
    checkpoint_every: Annotated[
        int, typer.Option(metavar="N", help="steps between saves", rich_help_panel=SAVED)
    ] = 0,
    resume: Annotated[
        bool, typer.Option("--resume", help="go on from the newest save", rich_help_panel=SAVED)
    ] = False,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="DIR",
            help="first weights: of a published model",
            rich_help_panel=WORK,
        ),
    ] = "",
    export: Annotated[
        str,
        typer.Option(
            metavar="DIR", help="last weights: safetensors, config.json", rich_help_panel=SAVED
        ),
    ] = "",
    log: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="a JSON object a step  [default: metrics.jsonl of --checkpoint]",
            rich_help_panel=TOLD,
        ),
    ] = "",
    tensorboard: Annotated[
        str, typer.Option(metavar="DIR", help="event files of TensorBoard", rich_help_panel=TOLD)
    ] = "",
    sample: Annotated[
        str, typer.Option(metavar="TEXT", help="go on with it at the end", rich_help_panel=TOLD)
    ] = "",
    coordinator: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT", help="of several processes", rich_help_panel="Many hosts"
        ),
    ] = "",
    processes: Annotated[int | None, typer.Option(metavar="N", help="how many they are")] = None,
    process: Annotated[int | None, typer.Option(metavar="I", help="which one this is")] = None,
    json: Json = False,
) -> Answer:
    """Train the model of a plan under that plan, with the planned step time beside the measured
    one. Ctrl-C and SIGTERM end after the step and save."""
    inputs = Inputs()
    if not data:
        inputs.refuse("no data is given: --data DIR, made by: shardwise data tokenize.")
    loaded = inputs.read(_training_plan, plan)
    inputs.done()
    total = steps_from_plan(loaded) if steps is None else steps
    recipe = inputs.read(
        Recipe,
        steps=total,
        rate=rate,
        schedule=schedule,
        warmup=warmup,
        clip=clip or None,
        decay=decay,
        on_bad=on_bad,
        spike=spike or None,
        collectives=collectives,
        capacity=capacity or None,
    )
    saving = inputs.read(
        CheckpointOptions, folder=checkpoint, every=checkpoint_every, resume=resume
    )
    joined = inputs.read(Rendezvous, coordinator=coordinator, processes=processes, process=process)
    inputs.done()
    if coordinator:
        answers_only()
    told = Lines(loaded, recipe.steps, quiet=json)
    hooks = Hooks(on_stage=told.stage, on_step=told.step, on_note=_note)
    try:
        done = sw.train(
            loaded,
            data=data,
            recipe=recipe,
            saving=saving,
            seed=seed,
            log=log,
            joined=joined,
            sample=sample or None,
            start=start,
            export=export,
            tensorboard=tensorboard,
            hooks=hooks,
        )
    finally:
        told.stages.done()
    blocks = report.blocks(done, checkpoint) if is_first() else []
    unsaved = bool(checkpoint) and done.checkpoint != done.done
    return Answer(document=lambda: done, blocks=blocks, as_json=json, exit_code=4 if unsaved else 0)


def _training_plan(path: str) -> sw.Plan:
    found = sw.load(path)
    if not isinstance(found, sw.Plan):
        raise BadInput(f"{path} is a plan of serving; plan with --train.")
    return found


def _note(text: str) -> None:
    lines = textwrap.fill(text, 80, break_long_words=False, break_on_hyphens=False)
    sys.stderr.write(showable(lines + "\n", sys.stderr))
    sys.stderr.flush()


class Lines:
    """The lines of a run: its plan, then a line a step under names of the columns now and then.

    Args:
        quiet: stdout is for one document.
    """

    def __init__(self, plan: sw.Plan, steps: int, *, quiet: bool) -> None:
        self.plan, self.steps, self.quiet, self.n = plan, steps, quiet, 0
        self.stages = Stages()

    def stage(self, stage: str) -> None:
        """A stage begins before the first step; all that could be refused is behind it."""
        if stage and is_first():
            self._write(report.begin(self.plan))
        self.stages.begin(stage)

    def step(self, record: StepRecord) -> None:
        """A step is done."""
        heads = report.heads(self.steps) + "\n" if self.n % HEADS_EVERY == 0 else ""
        self.n += 1
        self._write(heads + report.line(record) + "\n")

    def _write(self, text: str) -> None:
        if not self.quiet:
            write_answer(showable(text, sys.stdout))
