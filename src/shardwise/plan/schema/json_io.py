"""plan.json: a plan as one JSON document, and back, equal."""

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
WORDED = ("why", "alternatives", "pareto")  # rows that a document may carry the `text` of


def decode(text: bytes | str, name: str = "plan") -> AnyPlan:
    """A plan from its JSON: of training, or of serving where its workload says so.

    Raises:
        BadFile: not JSON, another schema, an unknown or missing key, a wrong type; says where.
    """
    import msgspec

    try:
        raw = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise BadFile(f"{name} is not JSON: {error}.") from None
    schema = raw.get("schema") if isinstance(raw, dict) else None
    if schema != SCHEMA:
        raise BadFile(
            f'{name} has schema "{schema}"; this version reads "{SCHEMA}".',
            "Plan again: shardwise plan MODEL HARDWARE ... -o plan.json",
        )
    work = raw.get("workload")
    serves = isinstance(work, dict) and work.get("kind") == "serve"
    raw = {key: _without_text(rows) if key in WORDED else rows for key, rows in raw.items()}
    try:
        schema_of: type[AnyPlan] = ServingPlan if serves else Plan
        plan = msgspec.convert(raw, schema_of)
        known = SERVING_REASONS if serves else TRAINING_REASONS
        plan = replace(plan, why=_reasons(raw["why"], known, name))
    except msgspec.ValidationError as error:
        raise BadFile(f"{name}: {error}.") from None
    problems = _unknown(raw, msgspec.to_builtins(plan), "$")
    if isinstance(plan, Plan):
        problems += _missing(raw["strategy"])
    if problems:
        raise BadFile(*(f"{name}: {p}" for p in problems))
    return plan


def load(path: str | os.PathLike[str]) -> AnyPlan:
    """Read plan.json.

    Raises:
        BadFile: it is missing, cannot be read, or is not a plan.
    """
    try:
        with open(path, "rb") as file:
            return decode(file.read(), os.fspath(path))
    except OSError as error:
        raise BadFile(f"{os.fspath(path)}: {error.strerror}.") from None


def _without_text(rows: Any) -> Any:
    """Rows without their wording, which `report` derives from their numbers."""
    if not isinstance(rows, list):
        return rows
    return [
        {key: value for key, value in row.items() if key != "text"}
        if isinstance(row, dict)
        else row
        for row in rows
    ]


def _reasons(
    rows: list[dict[str, Any]], known: dict[str, type[Reason]], name: str
) -> tuple[Reason, ...]:
    """Each reason as the class of its constraint.

    Raises:
        BadFile: an unknown constraint. msgspec.ValidationError: a missing key, or a wrong type.
    """
    import msgspec

    found = []
    for i, row in enumerate(rows):
        if row["constraint"] not in known:
            hint = nearest(row["constraint"], known)
            word = row["constraint"]
            raise BadFile(f'{name}: unknown constraint "{word}" at $.why[{i}]. {hint}')
        try:
            found.append(msgspec.convert(row, known[row["constraint"]]))
        except msgspec.ValidationError as error:
            raise msgspec.ValidationError(f"{error} of `$.why[{i}]`") from None
    return tuple(found)


def _missing(strategy: dict[str, Any]) -> list[str]:
    """Words of a layout that a document leaves out."""
    words = [name for name in LAYOUT_WORDS if name not in strategy]
    return [f"missing required field `{name}` - at `$.strategy`." for name in words]


def _unknown(raw: Any, known: Any, at: str) -> list[str]:
    """Keys of the document that a Plan does not have, with the close ones."""
    if isinstance(raw, dict) and isinstance(known, dict):
        found = [
            f"unknown key {at}.{key}. {nearest(key, known)}" for key in raw if key not in known
        ]
        return found + [
            p for k in raw if k in known for p in _unknown(raw[k], known[k], f"{at}.{k}")
        ]
    if isinstance(raw, list) and isinstance(known, list | tuple):
        return [
            p
            for i, (r, k) in enumerate(zip(raw, known, strict=False))
            for p in _unknown(r, k, f"{at}[{i}]")
        ]
    return []
