"""The plan that answers a question; the last answers are kept, since sliders come back."""

from __future__ import annotations

import functools
from typing import Any

from shardwise.errors import BadInput, UnknownName, raise_all
from shardwise.plan import evaluate, plan
from shardwise.plan.schema.json_io import AnyPlan
from shardwise.plan.serving.build import best_deployment
from shardwise.search.serving.candidate import Candidate
from shardwise.strategy.mesh import ROLES, Mesh
from shardwise.ui.question import Inputs
from shardwise.workload import Serve, Train

KEPT = 512  # answers


@functools.lru_cache(maxsize=KEPT)
def answer(inputs: Inputs) -> AnyPlan:
    """Search the best plan, or evaluate the strategy of the question.

    Raises:
        BadInput: the strategy is not legal; the message says what is.
        NoPlan: there is none, or none fits.
    """
    if isinstance(inputs.job, Train):
        sizes = dict(inputs.strategy or ())
        words = dict(inputs.words)
        raise_all(BadInput, [f'"{role}" is no mesh axis.' for role in sizes if role not in ROLES])
        if inputs.strategy is None:
            return plan(inputs.model, inputs.system, inputs.job, words, peak=inputs.peak)
        mesh = Mesh(**sizes)
        settings: dict[str, Any] = {"peak": inputs.peak, "next_placement": False}
        return evaluate(inputs.model, inputs.system, inputs.job, mesh, words, **settings)
    return plan(inputs.model, inputs.system, inputs.job, **_serving_options(inputs))


@functools.lru_cache(maxsize=KEPT)
def deployment(inputs: Inputs) -> Candidate:
    """The deployment of the plan that answers a question about serving; errors as of `answer`."""
    if not isinstance(inputs.job, Serve):
        raise TypeError("training has no deployment")
    return best_deployment(inputs.model, inputs.system, inputs.job, **_serving_options(inputs))


def _serving_options(inputs: Inputs) -> dict[str, Any]:
    """What a search of deployments keeps, and how it is made."""
    sizes = dict(inputs.strategy or ())
    raise_all(BadInput, [f'"{role}" is no mesh axis.' for role in sizes if role not in ROLES])
    if "data" in sizes:
        raise UnknownName("mesh axis of an engine", "data", [r for r in ROLES if r != "data"])
    options: dict[str, Any] = {"peak": inputs.peak}
    if inputs.strategy is not None:  # an axis that it does not name has one chip
        sizes = {role: 1 for role in ROLES if role != "data"} | sizes
        options["disaggregate"] = False
    return {**options, "fixed": {**sizes, **dict(inputs.words)}}
