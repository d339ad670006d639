"""plan.json read back as an equal plan."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from shardwise.errors import BadFile, nearest
from shardwise.plan.schema.common import SCHEMA, Reason
from shardwise.plan.schema.serving import ServingPlan
from shardwise.plan.schema.serving_reasons import SERVING_REASONS
from shardwise.plan.schema.training import LAYOUT_WORDS, Plan
from shardwise.plan.schema.training_reasons import TRAINING_REASONS

AnyPlan = Plan | ServingPlan
# Lists whose rows may carry a `text`, which `report` derives from their numbers.
ROWS_WITH_TEXT = ("why", "alternatives", "pareto")


def decode(text: bytes | str, name: str = "plan") -> AnyPlan:
    """A plan from its JSON, for serving where its workload says so.

    Args:
        text: the JSON document.
        name: the document's name in messages.

    Raises:
        BadFile: not JSON, another schema, an unknown or missing key, a wrong type; says where.
    """
    import msgspec

    try:
        document = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise BadFile(f"{name} is not JSON: {error}.") from None
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != SCHEMA:
        raise BadFile(
            f'{name} has schema "{schema}"; this version reads "{SCHEMA}".',
            "Plan again: shardwise plan MODEL HARDWARE ... -o plan.json",
        )
    for key in ROWS_WITH_TEXT:
        if isinstance(document.get(key), list):
            document[key] = [_without_text(row) for row in document[key]]
    workload = document.get("workload")
    plan_type: type[AnyPlan] = Plan
    reason_types = TRAINING_REASONS
    if isinstance(workload, dict) and workload.get("kind") == "serve":
        plan_type = ServingPlan
        reason_types = SERVING_REASONS
    try:
        plan = msgspec.convert(document, plan_type)
        plan = replace(plan, why=_reasons(document["why"], reason_types, name))
    except msgspec.ValidationError as error:
        raise BadFile(f"{name}: {error}.") from None
    problems = _unknown_keys(document, msgspec.to_builtins(plan), "$")
    if isinstance(plan, Plan):
        problems += _missing_words(document["strategy"])
    if problems:
        raise BadFile(*(f"{name}: {problem}" for problem in problems))
    return plan


def load(path: str | os.PathLike[str]) -> AnyPlan:
    """Read plan.json.

    Raises:
        BadFile: the file is missing, cannot be read, or is not a plan.
    """
    try:
        with open(path, "rb") as file:
            return decode(file.read(), os.fspath(path))
    except OSError as error:
        raise BadFile(f"{os.fspath(path)}: {error.strerror}.") from None


def _without_text(row: Any) -> Any:
    if not isinstance(row, dict):
        return row
    return {key: value for key, value in row.items() if key != "text"}


def _reasons(
    rows: list[dict[str, Any]], reason_types: dict[str, type[Reason]], name: str
) -> tuple[Reason, ...]:
    """Each reason as the class of its constraint.

    Raises:
        BadFile: an unknown constraint. msgspec.ValidationError: a missing key, or a wrong type.
    """
    import msgspec

    reasons = []
    for index, row in enumerate(rows):
        constraint = row["constraint"]
        if constraint not in reason_types:
            hint = nearest(constraint, reason_types)
            raise BadFile(f'{name}: unknown constraint "{constraint}" at $.why[{index}]. {hint}')
        try:
            reasons.append(msgspec.convert(row, reason_types[constraint]))
        except msgspec.ValidationError as error:
            raise msgspec.ValidationError(f"{error} of `$.why[{index}]`") from None
    return tuple(reasons)


def _missing_words(strategy: dict[str, Any]) -> list[str]:
    """A problem for each word of a layout that a document leaves out."""
    words = [name for name in LAYOUT_WORDS if name not in strategy]
    return [f"missing required field `{name}` - at `$.strategy`." for name in words]


def _unknown_keys(document: Any, known: Any, path: str) -> list[str]:
    """A problem for each key of the document that a plan does not have, with similar keys."""
    problems: list[str] = []
    children: list[tuple[Any, Any, str]] = []
    if isinstance(document, dict) and isinstance(known, dict):
        for key, value in document.items():
            if key in known:
                children.append((value, known[key], f"{path}.{key}"))
            else:
                problems.append(f"unknown key {path}.{key}. {nearest(key, known)}")
    elif isinstance(document, list) and isinstance(known, list | tuple):
        for index, (value, known_value) in enumerate(zip(document, known, strict=False)):
            children.append((value, known_value, f"{path}[{index}]"))
    for value, known_value, child_path in children:
        problems += _unknown_keys(value, known_value, child_path)
    return problems
