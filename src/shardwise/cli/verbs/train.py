"""`shardwise train PLAN.json --data DIR`: run a plan in JAX on the devices of this host."""

from __future__ import annotations

import sys
import textwrap
from functools import partial
from typing import Annotated

import shardwise as sw
from shardwise.cli import options
from shardwise.cli.answer import Answer
from shardwise.cli.inputs import Inputs, load_plan
from shardwise.cli.options import argument, option, output, workload
from shardwise.cli.progress import Stages
from shardwise.cli.streams import reserve_stdout, write_answer
from shardwise.errors import BadInput, CheckFailed
from shardwise.report.style import showable
from shardwise.report.training import run as report
from shardwise.train.devices import Rendezvous, is_first
from shardwise.train.metrics import Hooks, StepRecord
from shardwise.train.recipe import ON_BAD, SCHEDULES, Recipe
from shardwise.train.run import CheckpointOptions, steps_from_plan

HEADERS_EVERY = 25  # lines of steps between two lines of headers

optimization = partial(option, "Optimization")
checkpoints = partial(option, "Checkpoints")
hosts = partial(option, "Multiple hosts")


def run(
    plan: Annotated[str, argument("PLAN.json", "a saved plan of training")],
    data: Annotated[
        str,
        workload("--data DIR[=W],...", "tokens, by shardwise data tokenize; W: their weights"),
    ] = "",
    steps: Annotated[
        int | None, workload("--steps N", "steps of the whole run  [default: the plan's tokens]")
    ] = None,
    seed: Annotated[int, workload("--seed N", "seed of the weights and of the data's order")] = 0,
    start: Annotated[
        str, workload("--from DIR", "folder of a published model, to start from its weights")
    ] = "",
    collectives: options.Collectives = "plan",
    capacity: Annotated[
        float,
        workload("--capacity X", "capacity factor of an expert; 0: no token is dropped"),
    ] = 0.0,
    rate: Annotated[float, optimization("--rate X", "peak learning rate")] = 3e-4,
    schedule: Annotated[
        str, optimization("--schedule WORD", f"of the learning rate: {', '.join(SCHEDULES)}")
    ] = "cosine",
    warmup: Annotated[int, optimization("--warmup N", "steps in which the rate rises")] = 0,
    clip: Annotated[
        float, optimization("--clip X", "largest norm of the gradients; 0: no limit")
    ] = 1.0,
    decay: Annotated[float, optimization("--decay X", "weight decay of matrices")] = 0.1,
    on_bad: Annotated[
        str,
        optimization(
            "--on-bad WORD", f"after NaN, inf or a spike of the loss: {' or '.join(ON_BAD)}"
        ),
    ] = "stop",
    spike: Annotated[
        float, optimization("--spike NATS", "a loss this far above its mean is bad; 0: none is")
    ] = 0.0,
    checkpoint: Annotated[str, checkpoints("--checkpoint DIR", "save the run there")] = "",
    checkpoint_every: Annotated[
        int, checkpoints("--checkpoint-every N", "steps between saves")
    ] = 0,
    resume: Annotated[bool, checkpoints("--resume", "continue from the newest save")] = False,
    export: Annotated[
        str,
        checkpoints("--export DIR", "save the last weights: safetensors, config.json"),
    ] = "",
    coordinator: Annotated[
        str, hosts("--coordinator HOST:PORT", "address of the first process")
    ] = "",
    processes: Annotated[int | None, hosts("--processes N", "number of processes")] = None,
    process: Annotated[int | None, hosts("--process I", "index of this process")] = None,
    log: Annotated[
        str,
        output("--log FILE", "a JSON object per step  [default: metrics.jsonl of --checkpoint]"),
    ] = "",
    tensorboard: Annotated[str, output("--tensorboard DIR", "event files of TensorBoard")] = "",
    sample: Annotated[
        str, output("--sample TEXT", "prompt for the trained model to continue")
    ] = "",
    json: options.Json = False,
) -> Answer:
    """Train the model of a plan under that plan, with the planned step time beside the measured
    one. Ctrl-C and SIGTERM end the run after the step and save it."""
    inputs = Inputs()
    if not data:
        inputs.refuse("no data is given: --data DIR, made by: shardwise data tokenize.")
    loaded = inputs.read(_training_plan, plan)
    inputs.done()
    recipe = inputs.read(
        Recipe,
        steps=steps_from_plan(loaded) if steps is None else steps,
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
    rendezvous = inputs.read(
        Rendezvous, coordinator=coordinator, processes=processes, process=process
    )
    inputs.done()
    if coordinator:
        reserve_stdout()
    run_lines = RunLines(loaded, recipe.steps, quiet=json)
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
            hooks=hooks,
        )
    finally:
        run_lines.stages.done()
    blocks = report.blocks(result, checkpoint) if is_first() else []
    unsaved = bool(checkpoint) and result.checkpoint != result.done
    exit_code = CheckFailed.exit_code if unsaved else 0
    return Answer(document=lambda: result, blocks=blocks, as_json=json, exit_code=exit_code)


def _training_plan(path: str) -> sw.Plan:
    plan = load_plan(path)
    if not isinstance(plan, sw.Plan):
        raise BadInput(f"{path} is a plan of serving; plan with --train.")
    return plan


def _note(text: str) -> None:
    """Write a note of the run to stderr."""
    lines = textwrap.fill(text, 80, break_long_words=False, break_on_hyphens=False)
    sys.stderr.write(showable(lines + "\n", sys.stderr))
    sys.stderr.flush()


class RunLines:
    """Writes the lines of a run: its plan, a line per step, and headers every HEADERS_EVERY steps.

    Args:
        steps: number of steps in the run.
        quiet: write nothing to stdout, which is reserved for a JSON document.
    """

    def __init__(self, plan: sw.Plan, steps: int, *, quiet: bool) -> None:
        self.plan = plan
        self.steps = steps
        self.quiet = quiet
        self.n_lines = 0
        self.stages = Stages()

    def stage(self, stage: str) -> None:
        """Called when a stage, such as compiling, begins; all inputs have been checked by then."""
        if stage and is_first():
            self._write(report.plan_summary(self.plan))
        self.stages.begin(stage)

    def step(self, record: StepRecord) -> None:
        """Called when a step is done."""
        if self.n_lines % HEADERS_EVERY == 0:
            self._write(report.step_headers(self.steps) + "\n")
        self.n_lines += 1
        self._write(report.step_line(record) + "\n")

    def _write(self, text: str) -> None:
        if not self.quiet:
            write_answer(showable(text, sys.stdout))
