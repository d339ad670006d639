"""The answer of `explain` for training and serving plans, and the parser of --what-if."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

import shardwise as sw
from shardwise.cli.answer import Answer
from shardwise.cli.inputs import Inputs, load_plan, parse_word
from shardwise.cli.progress import progress
from shardwise.errors import BadInput
from shardwise.hardware.scale import SCALABLE

MAX_FACTOR = 1000.0  # larger factors are typing errors: no two chips differ by that much
_CHANGE = re.compile(r"\s*(?P<name>[\w]+)\s*[x×*]\s*(?P<factor>\S+)\s*", re.IGNORECASE)


def explain(
    plan: sw.Plan | sw.ServingPlan, factors: Mapping[str, float], *, verbose: bool, as_json: bool
) -> Answer:
    """What binds the plan, and what would change it.

    Args:
        factors: name of a hardware value -> the factor of --what-if; empty without that option.
        verbose: also show the decisions that led to the plan.
    """
    if isinstance(plan, sw.ServingPlan):
        return _explain_serving(plan, factors, verbose=verbose, as_json=as_json)
    from shardwise.report.document import document
    from shardwise.report.training import explain as report

    with progress("searching again, around the plan", quiet=as_json):
        explanation = sw.explain(plan, factors, search=verbose or as_json or not factors)
    return Answer(
        document=lambda: document(explanation),
        blocks=report.blocks(explanation, verbose=verbose),
        as_json=as_json,
    )


def _explain_serving(
    plan: sw.ServingPlan, factors: Mapping[str, float], *, verbose: bool, as_json: bool
) -> Answer:
    from shardwise.plan.serving import explain as serve_explain
    from shardwise.report.document import document
    from shardwise.report.serving import explain as report

    explanation = serve_explain.explain(plan, factors)
    return Answer(
        document=lambda: document(explanation),
        blocks=report.blocks(explanation, verbose=verbose),
        as_json=as_json,
    )


def read_saved(inputs: Inputs, path: str) -> sw.Plan | sw.ServingPlan:
    """Load a saved training or serving plan.

    Args:
        inputs: the other inputs of the command; all of its problems are raised here.
        path: of the plan.json.

    Raises:
        BadInput: `inputs` has problems.
        BadFile: the plan cannot be read.
    """
    plan = inputs.read(_load_plan, path)
    inputs.done()
    return plan


def _load_plan(path: str) -> sw.Plan | sw.ServingPlan:
    is_file = os.path.exists(path) and not os.path.isdir(path)
    if not is_file and path != "-" and not path.lower().endswith(".json"):
        raise BadInput(
            f'"{path}" is not a plan.json. Write shardwise explain plan.json, or '
            f"shardwise explain {path} HARDWARE --batch NxT, or --serve."
        )
    return load_plan(path)


def read_model(text: str) -> sw.ModelConfig:
    """Read the model of a plan that is still to be made.

    Raises:
        BadInput: it is a saved plan, which has its own machine; or there is no such model.
    """
    if os.path.isfile(text):
        with open(text, "rb") as file:
            if b'"shardwise.plan/' in file.read(100):
                raise BadInput(
                    f"{text} is a saved plan and has its own machine. Write shardwise explain "
                    f"{text}, or name MODEL HARDWARE."
                )
    return sw.model(text)


def parse_changes(text: str) -> dict[str, float]:
    """Parse the option --what-if: name of a hardware value -> factor.

    >>> parse_changes("ici x0.5,flops x2")
    {'ici': 0.5, 'flops': 2.0}

    Raises:
        BadInput: with every part that is wrong.
    """
    inputs = Inputs()
    factors: dict[str, float] = {}
    for part in text.split(","):
        match = _CHANGE.fullmatch(part)
        if not match:
            inputs.refuse(f'--what-if "{part.strip()}" is not NAME xFACTOR, as "ici x0.5".')
            continue
        name = inputs.read(parse_word, match["name"], "number of the hardware", SCALABLE)
        factor = inputs.read(_parse_factor, match["factor"])
        if name in factors:
            inputs.refuse(f"--what-if {name} is given twice.")
        factors[name] = factor
    inputs.done()
    return factors


def _parse_factor(text: str) -> float:
    try:
        factor = float(text)
    except ValueError:
        raise BadInput(f'--what-if: "{text}" is not a number.') from None
    if not 1 / MAX_FACTOR <= factor <= MAX_FACTOR:
        raise BadInput(
            f"--what-if x{text}: a factor is between {1 / MAX_FACTOR:g} and {MAX_FACTOR:g}."
        )
    return factor
