"""Options of a run: how it is saved, and what is taken from the run that it resumes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from shardwise.errors import BadInput, raise_all
from shardwise.plan.schema.training import Plan
from shardwise.train.data_order import absolute_mixture
from shardwise.train.recipe import Recipe
from shardwise.train.run_folder import RunRecord, read_record, this_command

KEEP = 2  # checkpoints in a folder


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointOptions:
    """Where and how often a run is saved.

    Args:
        folder: folder of the checkpoints; empty to save none.
        every: steps between checkpoints; 0 to save at the end only. None for 0, or for what a
            resumed run had.
        keep: number of checkpoints in the folder; older ones are removed. None for KEEP, or for
            what a resumed run had.
        resume: whether to continue from the newest checkpoint in the folder.
    """

    folder: str = ""
    every: int | None = None
    keep: int | None = None
    resume: bool = False

    def __post_init__(self) -> None:
        problems = []
        if not self.folder and (self.every or self.keep is not None or self.resume):
            problems.append("--checkpoint-every, --keep and --resume need --checkpoint FOLDER.")
        if self.every is not None and self.every < 0:
            problems.append(f"--checkpoint-every {self.every} is below 0.")
        if self.keep is not None and self.keep < 1:
            problems.append(f"--keep {self.keep} is below 1.")
        raise_all(BadInput, problems)

    def record(self) -> RunRecord | None:
        """Return how the run to resume was started; None for a new run, or without a record.

        Raises:
            BadFile: the record cannot be read.
        """
        if not self.resume:
            return None
        return read_record(self.folder)


def steps_from_plan(plan: Plan) -> int:
    """Return the number of steps that the plan's tokens take, at least 1.

    Raises:
        BadInput: the plan does not say how many tokens to train on.
    """
    if plan.workload.tokens is None:
        raise BadInput("the length of the run is missing: --steps N, or a plan with --tokens.")
    return max(1, round(plan.workload.tokens / plan.workload.tokens_per_step))


def default_recipe(plan: Plan, earlier: RunRecord | None, steps: int | None) -> Recipe:
    """Return the recipe of a run if none is given.

    Args:
        earlier: how the run that is resumed was started; None for a new run.
        steps: number of steps; None for those of the earlier run, else of the plan's tokens.

    Raises:
        BadInput: no number of steps is known.
    """
    if earlier is None:
        return Recipe(steps=steps_from_plan(plan) if steps is None else steps)
    if steps is None:
        return earlier.recipe
    return replace(earlier.recipe, steps=steps)


def record_of(
    recipe: Recipe,
    data: str,
    seed: int | None,
    start: str,
    saving: CheckpointOptions,
    earlier: RunRecord | None,
    export: str = "",
) -> RunRecord:
    """Return the record of the run that this process starts.

    Args:
        earlier: the record of the run that is resumed, whose values replace those that are empty
            or None; None for a new run.
    """
    every, keep = 0, KEEP
    if earlier is not None:
        every, keep, start = earlier.every, earlier.keep, earlier.start
        data = data or earlier.data
        if seed is None:
            seed = earlier.seed
    if saving.every is not None:
        every = saving.every
    if saving.keep is not None:
        keep = saving.keep
    if start:
        start = str(Path(start).absolute())
    command, versions = this_command()
    return RunRecord(
        recipe=recipe,
        data=absolute_mixture(data),
        seed=seed or 0,
        start=start,
        every=every,
        keep=keep,
        command=command,
        versions=versions,
        export=str(Path(export).absolute()) if export else "",
    )
