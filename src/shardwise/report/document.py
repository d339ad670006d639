"""Plans and explanations as JSON documents, in which each reason also has its sentence."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from shardwise.plan.decisions import Decision
from shardwise.plan.schema.common import Reason
from shardwise.plan.schema.json_io import AnyPlan
from shardwise.plan.schema.json_output import write
from shardwise.plan.schema.serving import ServingPoint
from shardwise.plan.schema.training import Alternative, Plan

if TYPE_CHECKING:
    from shardwise.plan.serving.explain import ServingExplanation
    from shardwise.plan.training.explain import Explanation


def document(answer: AnyPlan | Explanation | ServingExplanation) -> Any:
    """An answer as dicts, lists and scalars; a reason, decision or alternative gains a `text`.

    `text` is the sentence that the screen shows. Reading a plan back ignores it, since it follows
    from the other values.
    """
    from shardwise.plan.training.explain import Explanation

    if isinstance(answer, Plan | Explanation):
        return _plain(answer, _training_text)
    return _plain(answer, _serving_text)


def plans_document(plans: Sequence[AnyPlan]) -> Any:
    """The document of a single plan, or {"plans": [...]} for several, best first."""
    if len(plans) == 1:
        return document(plans[0])
    return {"plans": [document(plan) for plan in plans]}


def save(plan: AnyPlan, path: str | os.PathLike[str]) -> None:
    """Write a plan with its sentences to a JSON file.

    Raises:
        BadFile: the file cannot be written.
    """
    write(document(plan), path)


def _plain(value: Any, text_of: Callable[[Any], str]) -> Any:
    """`value` as dicts, lists and scalars; `text_of` returns the sentence of a dataclass, or ""."""
    if is_dataclass(value):
        plain_fields = {}
        for field in fields(value):
            plain_fields[field.name] = _plain(getattr(value, field.name), text_of)
        if text := text_of(value):
            plain_fields["text"] = text
        return plain_fields
    if isinstance(value, Mapping):
        return {key: _plain(item, text_of) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item, text_of) for item in value]
    return value


def _training_text(value: Any) -> str:
    from shardwise.report.training import decisions as training_decisions
    from shardwise.report.training import reasons as training_reasons

    match value:
        case Reason():
            return training_reasons.reason_text(value)
        case Decision():
            return training_decisions.decision_text(value)
        case Alternative():
            return training_reasons.loss_text(value.loses_on)
    return ""


def _serving_text(value: Any) -> str:
    from shardwise.report.serving import decisions as serving_decisions
    from shardwise.report.serving import reasons as serving_reasons

    match value:
        case Reason():
            return serving_reasons.reason_text(value)
        case Decision():
            return serving_decisions.decision_text(value)
        case ServingPoint():
            return serving_reasons.point_text(value)
    return ""
