"""Checks of a training run's inputs, which report all problems before anything is computed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from shardwise.errors import BadFile, BadInput, Problems, raise_all
from shardwise.plan.schema.training import Plan
from shardwise.plan.training.limit_text import limit_text
from shardwise.plan.training.rebuild import rebuild
from shardwise.search.training.problem import Case
from shardwise.search.training.runtime_limits import limits
from shardwise.train import pretrained
from shardwise.train.data_order import read_mixture
from shardwise.train.recipe import Recipe
from shardwise.train.run_folder import RunRecord
from shardwise.train.tokens import TokenSet
from shardwise.train.writable import ensure_writable


def check_inputs(
    plan: Plan | None,
    recipe: Recipe | None,
    *,
    data: str,
    start: str,
    earlier: RunRecord | None,
    resume: bool,
    folders: Sequence[tuple[str, str]],
    export: str,
    log: str,
) -> None:
    """Check what a run is given, as far as that needs no device.

    Args:
        plan: the plan; None if it could not be read.
        recipe: the hyperparameters; None if they are invalid.
        data: folders of tokens with their weights; empty for those of `earlier`.
        start: folder with the initial weights; empty for none.
        earlier: how the run that is resumed was started; None for a new run.
        resume: whether the run is resumed from a checkpoint.
        folders: (path, content) of folders that the run writes; an empty path is none.
        export: folder for the final weights; empty for none.
        log: file of the metrics; empty for none.

    Raises:
        BadInput: lists all problems.
    """
    problems = Problems()
    if start and resume:
        problems.refuse("--from starts a run and --resume continues one: leave out one of them.")
    origin = start  # of the weights, now or before the run was resumed
    if earlier is not None:
        origin = origin or earlier.start
        data = data or earlier.data
    if not data:
        problems.refuse("no data is given: --data DIR, made by: shardwise data tokenize.")
    case = None
    if plan is not None:
        case = problems.read(rebuild, plan)
    if case is not None:
        problems.read(check_plan, case)
    if case is not None and recipe is not None:
        problems.read(_check_recipe, case, recipe)
    if data:
        problems.read(_check_data, plan, data)
    for path, content in folders:
        if path:
            problems.read(ensure_writable, Path(path), content)
    if log:
        problems.read(_check_log, Path(log))
    if case is not None and start:
        problems.read(pretrained.check_start, case.model, start)
    if case is not None and export:
        problems.read(pretrained.check_export, case, origin, export)
    problems.done()


def check_plan(case: Case) -> None:
    """Check that the runtime trains a plan.

    Raises:
        BadInput: lists everything in the plan that it does not train.
    """
    plan_limits = limits(case.model, case.job, case.layout, case.system.chip)
    raise_all(BadInput, [limit_text(limit) for limit in plan_limits])


def _check_recipe(case: Case, recipe: Recipe) -> None:
    if recipe.capacity and not case.model.is_moe:
        raise BadInput(f"capacity applies to experts; {case.model.name} has none.")


def _check_data(plan: Plan | None, data: str) -> None:
    sets, _ = read_mixture(data)
    if plan is not None:
        _check_vocabulary(plan, sets)


def _check_vocabulary(plan: Plan, sets: Sequence[TokenSet]) -> None:
    """Check that the model has an embedding for each token, and that all sets have one tokenizer.

    Raises:
        BadInput: it is not so.
    """
    problems = Problems()
    for tokens in sets:
        if tokens.vocab > plan.model.vocab:
            tokenizer = tokens.metadata["tokenizer"]
            problems.refuse(
                f"{tokens.folder} has tokens up to {tokens.vocab:,} ({tokenizer}), "
                f"and {plan.model.name} a vocabulary of {plan.model.vocab:,}. Tokenize with the "
                f"model's tokenizer.json, or plan a model with vocab={tokens.vocab} or more."
            )
        if tokens.metadata["tokenizer"] != sets[0].metadata["tokenizer"]:
            problems.refuse(f"{tokens.folder} and {sets[0].folder} have different tokenizers.")
    problems.done()


def _check_log(path: Path) -> None:
    if os.path.isdir(path):  # False for a name that is too long, too
        raise BadFile(f"{path} is a folder; --log names a file.")
    ensure_writable(path.parent, "the log")
