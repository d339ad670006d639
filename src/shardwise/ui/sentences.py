"""The sentences of a plan on the page: those of the terminal."""

from __future__ import annotations

from shardwise.plan.schema.json_io import AnyPlan
from shardwise.plan.schema.serving import ServingPoint
from shardwise.plan.schema.training import Alternative, Plan
from shardwise.report.serving import plan as serving_report
from shardwise.report.serving import reasons as serving_reasons
from shardwise.report.training import plan as training_report
from shardwise.report.training import reasons as training_reasons


def headline(plan: AnyPlan) -> str:
    """The plan in a line."""
    if isinstance(plan, Plan):
        return training_report.headline(plan)
    return serving_report.headline(plan)


def sentences(plan: AnyPlan) -> list[str]:
    """Why this plan."""
    if isinstance(plan, Plan):
        return [training_reasons.reason_text(reason) for reason in plan.why]
    return [serving_reasons.reason_text(reason) for reason in plan.why]


def why_not(other: Alternative | ServingPoint) -> str:
    """Why another strategy is worse than the plan."""
    if isinstance(other, Alternative):
        return training_reasons.loss_text(other.loses_on)
    return serving_reasons.point_text(other)
