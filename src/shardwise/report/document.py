"""Plans and explanations as JSON documents: every value, with a sentence for each reason."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from shardwise.plan.decisions import Decision
from shardwise.plan.schema.common import Reason
from shardwise.plan.schema.json_io import AnyPlan
from shardwise.plan.schema.json_output import write
from shardwise.plan.schema.serving import ServingPlan, ServingPoint
from shardwise.plan.schema.training import Alternative
from shardwise.plan.serving.explain import ServingExplanation
from shardwise.plan.training.explain import Explanation
from shardwise.report.serving import decisions as serving_decisions
from shardwise.report.serving import reasons as serving_reasons
from shardwise.report.training import decisions as training_decisions
from shardwise.report.training import reasons as training_reasons


def document(answer: AnyPlan | Explanation | ServingExplanation) -> Any:
    """An answer as plain data; each reason, decision and alternative has its sentence as `text`.

    Reading a plan back ignores `text`, which follows from the values.
    """
    is_serving = isinstance(answer, ServingPlan | ServingExplanation)
    return _plain(answer, _serving_text if is_serving else _training_text)


def plans_document(plans: Sequence[AnyPlan]) -> Any:
    """The best plan alone, or several as {"plans": [...]}."""
    if len(plans) == 1:
        return document(plans[0])
    return {"plans": [document(plan) for plan in plans]}


def save(plan: AnyPlan, path: str | os.PathLike[str]) -> None:
    """Write a plan with its sentences.

    Raises:
        BadFile: the file cannot be written.
    """
    write(document(plan), path)


def _plain(value: Any, text_of: Callable[[Any], str]) -> Any:
    if is_dataclass(value):
        row = {field.name: _plain(getattr(value, field.name), text_of) for field in fields(value)}
        if text := text_of(value):
            row["text"] = text
        return row
    if isinstance(value, Mapping):
        return {key: _plain(item, text_of) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item, text_of) for item in value]
    return value


def _training_text(value: Any) -> str:
    match value:
        case Reason():
            return training_reasons.reason_text(value)
        case Decision():
            return training_decisions.decision_text(value)
        case Alternative():
            return training_reasons.loss_text(value.loses_on)
    return ""


def _serving_text(value: Any) -> str:
    match value:
        case Reason():
            return serving_reasons.reason_text(value)
        case Decision():
            return serving_decisions.decision_text(value)
        case ServingPoint():
            return serving_reasons.point_text(value)
    return ""
