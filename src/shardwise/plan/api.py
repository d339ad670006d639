"""`plan`, `search`, `explain` and `sweep` of the public API, for training and for serving.

The type of the job or plan decides whether `plan.training` or `plan.serving` answers.
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
    any_layout: bool = False,
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
    any_layout: bool = False,
    peak: bool = False,
    disaggregate: bool | None = None,
    traffic: str | None = None,
    at: float = 0.99,
) -> Plan | ServingPlan:
    """Search all legal strategies and return the best one as a plan.

    Args:
        model: the architecture.
        system: the machine. For serving also a chip: the search then chooses one of its machines.
        job: the workload: `Train` or `Serve`.
        fixed: choices of the strategy that the search must keep, by name: `{"tensor": 8,
            "schedule": "1f1b"}`. For training: sizes of mesh roles, `micro_batch`,
            `n_microbatches`, `virtual`, `zero`, `loss_chunks`, `schedule`, `remat`,
            `context_kind`. For serving: sizes of mesh roles, `weights`, `kv`, `expert_tensor`.
        most: mesh role -> largest size that the search may use.
        any_layout: for training: whether the search may choose a layout that the trainer does not
            run.
        peak: predict times at the chip's peak rates, as the book does, instead of calibrated rates.
        disaggregate: for serving: True plans separate prefill engines, False none. None chooses the
            better of both if the job has a rate or a bound.
        traffic: for serving: requests to simulate, so that the share `at` of them meets the bounds;
            without traffic, the means meet them. `poisson`, `constant`, `bursty:3`, `closed` for
            the users of the job, or the path of a recording.
        at: share of the simulated requests that must meet the bounds.

    Raises:
        UnknownName: a name or value in `fixed` or `most` does not exist.
        NotDivisible: a fixed size does not divide the model, the batch or the machine.
        NoStrategy: no split is legal, or none meets the bounds; the message says what would work.
        DoesNotFit: no legal split fits in memory.
        UnknownFigure: no public source gives a number of the chip that the plan needs.
    """
    if isinstance(job, Serve):
        if any_layout:
            raise BadInput("any_layout applies to training; pass an sw.Train(...).")
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
    options: dict[str, Any] = {"most": most, "any_layout": any_layout, "peak": peak}
    return build.plan(model, system, job, fixed, **options)  # type: ignore[arg-type]


def _arrivals(traffic: str | None, at: float, job: Serve) -> Arrivals | None:
    if traffic is None:
        return None
    from shardwise.plan.serving.arrivals import CLOSED, closed_loop, read_arrivals

    if traffic == CLOSED:
        return closed_loop(job.users, at)
    if job.users:
        raise BadInput('users send when they are answered: pass traffic="closed", or a rate.')
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
    any_layout: bool = False,
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
    any_layout: bool = False,
    peak: bool = False,
    disaggregate: bool | None = None,
) -> list[Plan] | list[ServingPlan]:
    """Search the `n` best plans on different meshes, best first.

    Arguments and errors are those of `plan`.
    """
    if isinstance(job, Serve):
        if any_layout:
            raise BadInput("any_layout applies to training; pass an sw.Train(...).")
        from shardwise.plan.serving import build as serving_build

        return serving_build.search(
            model, system, job, fixed, n, most=most, peak=peak, disaggregate=disaggregate
        )
    if disaggregate is not None:
        raise BadInput("disaggregate applies to serving; pass an sw.Serve(...).")
    options: dict[str, Any] = {"most": most, "any_layout": any_layout, "peak": peak}
    return build.search(model, system, job, fixed, n, **options)  # type: ignore[arg-type]


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
    """Explain a plan: what bounds it and by how much, what would change it, and why it was chosen.

    Args:
        plan: from `shardwise.plan`, or loaded from a file.
        what_if: numbers of the machine -> factors to multiply them by: `{"ici": 0.5, "flops": 2}`.
        search: for training: also search at half and twice the batch, and at half and twice the
            sequence length. False saves these four searches.

    Raises:
        BadFile: the inputs of the plan cannot be rebuilt.
        BadInput: the machine has no number of a name in `what_if`.
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
    """Find the best plan for every combination of the options, one row each.

    Args:
        model: the architecture.
        system: the machine, or several to compare; for serving also chips.
        job: the workload. Options replace its fields: `batch=[512, 1024]`.
        peak: predict times at peak rates instead of calibrated rates.
        progress: called before each row with its index and the number of rows.
        options: name -> values to combine; a single value holds for all rows. For training: fields
            of `Train`, sizes of mesh roles and other choices of a strategy, as in `tensor=[1, 2,
            4]` or `remat=["none", "full"]`. `dtype` is the dtype of matmuls; it also sets weights
            of the same dtype, but at least 16 bits, fp32 gradients, and an fp32 master copy if the
            weights are narrower. For serving: see `shardwise.plan.serving.sweep.sweep`.

    Raises:
        UnknownName: unknown option.
        BadInput: an option has no values, or there are more than 1,000 rows.
    """
    if isinstance(job, Serve):
        from shardwise.plan.serving import sweep as serving_sweep

        return serving_sweep.sweep(model, system, job, peak=peak, progress=progress, **options)
    from shardwise.plan.training import sweep as training_sweep

    return training_sweep.sweep(model, system, job, peak=peak, progress=progress, **options)
