"""Plans and explanations as JSON documents: every value, and beside each reason its words."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
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
from shardwise.report.serving import reasons as serving
from shardwise.report.training import decisions as training_decisions
from shardwise.report.training import reasons as training


def document(answer: AnyPlan | Explanation | ServingExplanation) -> Any:
    """An answer as plain data; `text` words each reason, decision and alternative.

    Reading it back as a plan leaves `text` out: it follows from the values.
    """
    serves = isinstance(answer, ServingPlan | ServingExplanation)
    return _plain(answer, serves=serves)


def plans_document(plans: Sequence[AnyPlan]) -> Any:
    """The best plan alone, or several as {"plans": [...]}."""
    if len(plans) == 1:
        return document(plans[0])
    return {"plans": [document(plan) for plan in plans]}


def save(plan: AnyPlan, path: str | os.PathLike[str]) -> None:
    """Write a plan with its words.

    Raises:
        BadFile: it cannot be written.
    """
    write(document(plan), path)


def _plain(value: Any, *, serves: bool) -> Any:
    if is_dataclass(value):
        row = {f.name: _plain(getattr(value, f.name), serves=serves) for f in fields(value)}
        words = _words(value, serves=serves)
        return {**row, "text": words} if words else row
    if isinstance(value, Mapping):
        return {key: _plain(one, serves=serves) for key, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(one, serves=serves) for one in value]
    return value


def _words(value: Any, *, serves: bool) -> str:
    match value:
        case Reason():
            return serving.reason_text(value) if serves else training.reason_text(value)
        case Decision():
            if serves:
                return serving_decisions.decision_text(value)
            return training_decisions.decision_text(value)
        case Alternative():
            return training.loss_text(value.loses_on)
        case ServingPoint():
            return serving.point_text(value)
    return ""
