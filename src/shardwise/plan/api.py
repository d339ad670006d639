"""`plan`, `search`, `explain` and `sweep` of the public API, for training and for serving.

The type of the job or of the plan decides which of the two wings answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from shardwise.errors import BadInput
from shardwise.hardware import Chip, System
from shardwise.models import ModelConfig
from shardwise.plan.schema.serving import ServingPlan
from shardwise.plan.schema.training import Plan
from shardwise.plan.sweep_grid import Progress
from shardwise.plan.training import build
from shardwise.search.given import Choices
from shardwise.workload import Serve, Train

if TYPE_CHECKING:
    from shardwise.plan.serving.arrivals import Arrivals
    from shardwise.plan.serving.explain import ServingExplanation
    from shardwise.plan.serving.sweep import ServingSweep
    from shardwise.plan.training.explain import Explanation
    from shardwise.plan.training.sweep import Sweep


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
        system: the machine; for serving also a chip, to search machines of that chip.
        job: the workload: `Train` or `Serve`.
        fixed: choices of the strategy that the search must keep, by name: `{"tensor": 8,
            "schedule": "1f1b"}`. For training: sizes of mesh roles, `micro_batch`,
            `n_microbatches`, `virtual`, `zero`, `loss_chunks`, `schedule`, `remat`,
            `context_kind`. For serving: sizes of mesh roles, `weights`, `kv`, `expert_tensor`.
        most: largest sizes of mesh roles.
        peak: expect the chip's peak rates, as the book does, instead of calibrated rates.
        disaggregate: for serving: True for separate prefill engines, False for none, None for
            whichever is better where a rate or a bound is set.
        traffic: for serving: simulate requests, so that the bounds hold for the share `at` of them
            instead of for the means. `poisson`, `constant`, `bursty:3`, or the path of a recording.
        at: share of the simulated requests that must meet the bounds.

    Raises:
        UnknownName: an unknown role or word. NotDivisible: a fixed size that divides nothing.
        NoStrategy: no legal split, or none within the bounds; the message says what would work.
        DoesNotFit: no legal split fits into memory.
        UnknownFigure: a figure that the chip's file does not have.
    """
    if isinstance(job, Serve):
        from shardwise.plan.serving import build as serving_build

        return serving_build.plan(
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
        raise BadInput("disaggregate and traffic apply to serving; pass an sw.Serve(...).")
    return build.plan(model, system, job, fixed, most=most, peak=peak)  # type: ignore[arg-type]


def _arrivals(traffic: str | None, at: float, job: Serve) -> Arrivals | None:
    if traffic is None:
        return None
    from shardwise.plan.serving.arrivals import read_arrivals

    arrivals = read_arrivals(traffic, at)
    if arrivals.trace is None and not job.rate:
        raise BadInput("traffic needs a rate: sw.Serve(..., rate=20), requests per second.")
    return arrivals


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
    """The `n` best plans on different meshes, best first. Arguments and errors as in `plan`."""
    if isinstance(job, Serve):
        from shardwise.plan.serving import build as serving_build

        return serving_build.search(
            model, system, job, fixed, n, most=most, peak=peak, disaggregate=disaggregate
        )
    if disaggregate is not None:
        raise BadInput("disaggregate applies to serving; pass an sw.Serve(...).")
    return build.search(model, system, job, fixed, n, most=most, peak=peak)  # type: ignore[arg-type]


@overload
def explain(
    plan: Plan, what_if: Mapping[str, float] | None = None, *, search: bool = True
) -> Explanation: ...
@overload
def explain(
    plan: ServingPlan, what_if: Mapping[str, float] | None = None, *, search: bool = True
) -> ServingExplanation: ...
def explain(
    plan: Plan | ServingPlan, what_if: Mapping[str, float] | None = None, *, search: bool = True
) -> Explanation | ServingExplanation:
    """What binds a plan and by how much, what would change it, and the decisions that lead to it.

    Args:
        plan: from `shardwise.plan`, or loaded.
        what_if: figures of the machine to multiply: `{"ici": 0.5, "flops": 2}`.
        search: for training: also search at half and twice the batch and the sequence length, four
            more searches.

    Raises:
        BadFile: the plan cannot be rebuilt. BadInput: the machine has no such figure.
    """
    if isinstance(plan, ServingPlan):
        from shardwise.plan.serving import explain as serving_explain

        return serving_explain.explain(plan, what_if)
    from shardwise.plan.training import explain as training_explain

    return training_explain.explain(plan, what_if, search=search)


@overload
def sweep(
    model: ModelConfig,
    system: System | Sequence[System],
    job: Train,
    *,
    peak: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> Sweep: ...
@overload
def sweep(
    model: ModelConfig,
    system: System | Chip | Sequence[System | Chip],
    job: Serve,
    *,
    peak: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> ServingSweep: ...
def sweep(
    model: ModelConfig,
    system: Any,
    job: Train | Serve,
    *,
    peak: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> Sweep | ServingSweep:
    """The best plan for every combination of the options.

    Args:
        model: the architecture.
        system: the machine, or several to compare; for serving also chips.
        job: the workload; options may replace any of its fields: `batch=[512, 1024]`.
        peak: expect peak rates.
        progress: called before each row with its index and the number of rows.
        options: values by name; a single value holds for all rows. For training: fields of
            `Train`, roles of the mesh, words of a strategy, and `dtype`, the dtype of the
            arithmetic, which also sets weights (16 bits at least), fp32 gradients and an fp32
            master of narrower weights: `tensor=[1, 2, 4]`, `remat=["none", "full"]`. For
            serving: see `shardwise.plan.serving.sweep.sweep`.

    Raises:
        UnknownName: an unknown option. BadInput: an option without values, or over 1,000 rows.
    """
    if isinstance(job, Serve):
        from shardwise.plan.serving import sweep as serving_sweep

        return serving_sweep.sweep(model, system, job, peak=peak, progress=progress, **options)
    from shardwise.plan.training import sweep as training_sweep

    return training_sweep.sweep(model, system, job, peak=peak, progress=progress, **options)
