"""`plan` and `search` of the public API: of training or of serving, by the work that is given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, overload

from shardwise.errors import BadInput
from shardwise.hardware import Chip, System
from shardwise.models import ModelConfig
from shardwise.plan.schema.serving import ServingPlan
from shardwise.plan.schema.training import Plan
from shardwise.plan.training import build
from shardwise.search.given import Choices
from shardwise.workload import Serve, Train

if TYPE_CHECKING:
    from shardwise.plan.serving.arrivals import Arrivals


@overload
def plan(
    model: ModelConfig,
    system: System,
    job: Train,
    fixed: Choices | None = None,
    *,
    most: Mapping[str, int] | None = None,
    peak: bool = False,
) -> Plan: ...
@overload
def plan(
    model: ModelConfig,
    system: System | Chip,
    job: Serve,
    fixed: Choices | None = None,
    *,
    most: Mapping[str, int] | None = None,
    peak: bool = False,
    disaggregate: bool | None = None,
    traffic: str | None = None,
    at: float = 0.99,
) -> ServingPlan: ...
def plan(
    model: ModelConfig,
    system: System | Chip,
    job: Train | Serve,
    fixed: Choices | None = None,
    *,
    most: Mapping[str, int] | None = None,
    peak: bool = False,
    disaggregate: bool | None = None,
    traffic: str | None = None,
    at: float = 0.99,
) -> Plan | ServingPlan:
    """The best plan.

    Args:
        model: the architecture.
        system: the machine; for serving also a chip, whose machines are searched.
        job: the work: `Train` or `Serve`.
        fixed: what is given of a strategy: sizes of mesh roles, and words. Of training:
            `micro_batch`, `n_microbatches`, `virtual`, `zero`, `loss_chunks`, `schedule`, `remat`,
            `context_kind`: `{"tensor": 8, "schedule": "1f1b"}`. Of serving: `weights`, `kv`,
            `expert_tensor`.
        most: largest sizes of mesh roles.
        peak: expect the chip's peak rates, as the book does, and not what it reaches in practice.
        disaggregate: of serving: True for engines of their own for prompts, False for none, None
            for what is better where a rate or a bound is given.
        traffic: of serving at a rate: requests that are simulated, so that the bounds hold for the
            share `at` of them: `poisson`, `constant`, `bursty:3`, or the path of a recording; None:
            for their means.
        at: see `traffic`.

    Raises:
        UnknownName: a role or word that is none. NotDivisible: a fixed size that divides nothing.
        NoStrategy: no legal split, or none within the bounds; the message says what would work.
        DoesNotFit: no legal split fits into memory.
        UnknownFigure: a figure that the chip's file does not have.
    """
    if isinstance(job, Serve):
        from shardwise.plan.serving import build as serve_build

        return serve_build.plan(
            model,
            system,
            job,
            fixed,
            most=most,
            peak=peak,
            disaggregate=disaggregate,
            arrivals=_arrivals(traffic, at, job),
        )
    if disaggregate is not None or traffic is not None:
        raise BadInput("disaggregate and traffic are of serving: the work is no sw.Serve(...).")
    return build.plan(model, system, job, fixed, most=most, peak=peak)  # type: ignore[arg-type]


def _arrivals(traffic: str | None, at: float, job: Serve) -> Arrivals | None:
    if traffic is None:
        return None
    from shardwise.plan.serving.arrivals import read_arrivals

    found = read_arrivals(traffic, at)
    if found.trace is None and not job.rate:
        raise BadInput("traffic needs a rate: sw.Serve(..., rate=20), requests per second.")
    return found


@overload
def search(
    model: ModelConfig,
    system: System,
    job: Train,
    fixed: Choices | None = None,
    n: int = 5,
    *,
    most: Mapping[str, int] | None = None,
    peak: bool = False,
) -> list[Plan]: ...
@overload
def search(
    model: ModelConfig,
    system: System | Chip,
    job: Serve,
    fixed: Choices | None = None,
    n: int = 5,
    *,
    most: Mapping[str, int] | None = None,
    peak: bool = False,
    disaggregate: bool | None = None,
) -> list[ServingPlan]: ...
def search(
    model: ModelConfig,
    system: System | Chip,
    job: Train | Serve,
    fixed: Choices | None = None,
    n: int = 5,
    *,
    most: Mapping[str, int] | None = None,
    peak: bool = False,
    disaggregate: bool | None = None,
) -> list[Plan] | list[ServingPlan]:
    """The `n` best plans on different meshes, best first. Raises as `plan` does."""
    if isinstance(job, Serve):
        from shardwise.plan.serving import build as serve_build

        return serve_build.search(
            model, system, job, fixed, n, most=most, peak=peak, disaggregate=disaggregate
        )
    if disaggregate is not None:
        raise BadInput("disaggregate is a choice of serving: the work is no sw.Serve(...).")
    return build.search(model, system, job, fixed, n, most=most, peak=peak)  # type: ignore[arg-type]
