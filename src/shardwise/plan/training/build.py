"""Make training plans: search a strategy or take a given one, and record it with its numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from shardwise.errors import NoStrategy, NotDivisible, raise_all
from shardwise.estimate.calibration import Calibration, spread_outside_practice
from shardwise.estimate.training.framework_profiles import profile_of
from shardwise.estimate.training.layout_step import LayoutStep
from shardwise.estimate.training.usual_kernels import (
    UsualKernels,
    usual_kernels,
    with_usual_kernels,
)
from shardwise.formulas import cost
from shardwise.formulas.flops import REFERENCE_MFU, compute_s, mfu
from shardwise.hardware import System
from shardwise.models import ModelConfig, count
from shardwise.plan.arguments import check_types
from shardwise.plan.losses import nonzero
from shardwise.plan.machine import (
    describe_links,
    memory_bytes,
    planned_hardware,
    rates_of,
    rates_used,
)
from shardwise.plan.schema import training
from shardwise.plan.schema.architecture import planned_model
from shardwise.plan.schema.common import Operation
from shardwise.plan.schema.training_reasons import TokenPrediction, UsualSettings
from shardwise.plan.training import reasons, refusals
from shardwise.plan.training.operations import busiest_stage, operations
from shardwise.plan.xla_flags import flags_for
from shardwise.search.given import NOTHING_FIXED, Choices, Fixed
from shardwise.search.training import rank
from shardwise.search.training.forms import read_fixed
from shardwise.search.training.legal import layout_problems, problems
from shardwise.search.training.practice import SCALE, is_known, layout_in_practice
from shardwise.search.training.rank import Candidate
from shardwise.strategy.layout import Layout, rules_of
from shardwise.strategy.mesh import Mesh, place
from shardwise.workload import Train

SAME_TIME = 1e-6  # relative difference of two step times that counts as none


def plan(
    model: ModelConfig,
    system: System,
    job: Train,
    fixed: Choices | None = None,
    *,
    most: Mapping[str, int] | None = None,
    any_layout: bool = False,
    peak: bool = False,
) -> training.Plan:
    """Search the best plan. Arguments and errors are those of `shardwise.plan.api.plan`."""
    options: dict[str, Any] = {"most": most, "any_layout": any_layout, "peak": peak}
    return search(model, system, job, fixed, n=1, **options)[0]


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
) -> list[training.Plan]:
    """Search the `n` best plans on different meshes, best first.

    Arguments and errors are those of `plan`.
    """
    _check_arguments(model, system, job)
    usual = usual_kernels(model, system.chip, job)
    job = with_usual_kernels(model, system.chip, job)
    choices = read_fixed(fixed, most, any_layout=any_layout)
    raise_all(NotDivisible, problems(model, system, job, choices.sizes, whole=False))
    rates = rates_of(system, job, peak=peak)
    try:
        ranking = rank.rank(model, system, job, rates, choices, keep=max(n, rank.RANKED))
    except NoStrategy:
        raise refusals.no_strategy(model, system, job, choices) from None
    candidates = ranking.candidates
    if not candidates[0].fits:
        raise refusals.does_not_fit(model, system, job, choices, candidates)
    fitting = [candidate for candidate in candidates if candidate.fits][:n]
    plans = [
        _record_plan(model, system, job, rates, candidate, candidates, choices, usual=usual)
        for candidate in fitting
    ]
    if not is_known(system, rates):
        return plans
    rivals = [ranking.rival, *[None] * n]  # of the best plan alone
    return [
        replace(plan, practice=_practice(model, system, job, c.layout, rival))
        for plan, c, rival in zip(plans, fitting, rivals, strict=False)
    ]


def _practice(
    model: ModelConfig, system: System, job: Train, layout: Layout, rival: Candidate | None
) -> training.Practice:
    """Whether a layout is within practice, and the rival of the search's best."""
    layout_of_rival = None
    if rival:
        layout_of_rival = training.RivalLayout(
            mesh=rival.mesh.sizes,
            schedule=rival.layout.schedule,
            virtual=rival.layout.virtual,
            zero=rival.layout.zero,
            remat=rival.layout.policy,
            step_s=float(rival.time.step_s),
        )
    return training.Practice(
        within=layout_in_practice(model, system, job, layout),
        min_chips=max(1, system.n_chips // SCALE),
        max_chips=system.n_chips * SCALE,
        rival=layout_of_rival,
    )


def evaluate(
    model: ModelConfig,
    system: System,
    job: Train,
    split: Mesh | Layout,
    words: Choices | None = None,
    *,
    peak: bool = False,
    next_placement: bool = True,
) -> training.Plan:
    """Plan a given mesh or layout, on its best placement. It need not fit in memory.

    Args:
        model: the architecture.
        system: the machine.
        job: the workload.
        split: a layout; or a mesh, for which the best schedule, remat and ZeRO stage are searched,
            among those that the trainer runs if it runs any.
        words: choices that this search must keep: `{"schedule": "1f1b", "zero": 1}`.
        peak: predict times at the chip's peak rates instead of calibrated rates.
        next_placement: whether to look for the next best placement, which on a torus takes as long
            as the rest.

    Raises:
        NotDivisible: the mesh or layout is not legal. The error lists every reason, with legal
            sizes.
        NoStrategy: no strategy of the mesh keeps the choices in `words`.
    """
    _check_arguments(model, system, job)
    usual = usual_kernels(model, system.chip, job)
    job = with_usual_kernels(model, system.chip, job)
    mesh = split.mesh if isinstance(split, Layout) else split
    choices = read_fixed({**mesh.sizes, **(words or {})})
    raise_all(NotDivisible, problems(model, system, job, mesh.sizes, whole=True))
    rates = rates_of(system, job, peak=peak)
    if isinstance(split, Mesh):
        try:
            candidates = rank.rank(model, system, job, rates, choices, keep=1).candidates
        except NoStrategy:
            raise refusals.no_strategy(model, system, job, choices) from None
    else:
        if split.global_batch != job.batch:
            raise NotDivisible(
                f"the layout computes {split.global_batch:,} sequences a step (micro_batch "
                f"{split.micro_batch} x n_microbatches {split.n_microbatches} x "
                f"{split.data_shards:,} shards); the batch has {job.batch:,}."
            )
        raise_all(NotDivisible, layout_problems(model, split, job.seq))
        candidates = [rank.evaluate(model, system, job, split, rates)]
    return _record_plan(
        model,
        system,
        job,
        rates,
        candidates[0],
        candidates,
        usual=usual,
        next_placement=next_placement,
    )


def _check_arguments(model: ModelConfig, system: System, job: Train) -> None:
    check_types(
        [
            (model, ModelConfig, "sw.model(...)"),
            (system, System, "sw.hardware(...)"),
            (job, Train, "sw.Train(...)"),
        ]
    )
    if job.offload:
        system.chip.need("pcie.bandwidth")


def _record_plan(
    model: ModelConfig,
    system: System,
    job: Train,
    rates: Calibration,
    chosen: Candidate,
    candidates: list[Candidate],
    searched: Fixed | None = None,
    *,
    usual: UsualKernels | None,
    next_placement: bool = True,
) -> training.Plan:
    choices = NOTHING_FIXED if searched is None else searched
    layout = chosen.layout
    sizes = chosen.mesh.sizes
    step_operations = operations(chosen)
    precision = {name: getattr(job, name) for name in training.DTYPE_FIELDS}
    precision["reduce"] = job.reduce or job.gradients
    return training.Plan(
        model=planned_model(model),
        hardware=planned_hardware(system),
        workload=training.PlannedWork(
            kind="train",
            batch=job.batch,
            seq=job.seq,
            tokens=job.tokens,
            tokens_per_step=job.tokens_per_step,
            optimizer=job.optimizer,
            remat=job.remat,
            framework=job.framework,
            kernels=job.kernels,
            mtp_layers=job.mtp_layers,
        ),
        strategy=training.PlannedStrategy(
            mesh=sizes,
            placement=describe_links(chosen.placement, sizes),
            rules=dict(rules_of(layout)),
            remat=layout.policy,
            precision=precision,
            **{name: getattr(layout, name) for name in training.LAYOUT_FIELDS},
            fixed=dict(choices),
            most=dict(choices.max_sizes),
            any_layout=choices.any_layout,
            next_placement=_next_placement(model, system, job, rates, chosen)
            if next_placement
            else None,
        ),
        estimate=_estimate(model, system, job, rates, chosen, step_operations),
        operations=step_operations,
        why=(
            *reasons.reasons(model, system, job, chosen, candidates, searched),
            *_token_prediction(model, system, job, rates, chosen),
            *_usual_kernels(usual, job),
        ),
        alternatives=reasons.alternatives(chosen, candidates),
        xla_flags=flags_for(system),
    )


def _usual_kernels(usual: UsualKernels | None, job: Train) -> Iterator[UsualSettings]:
    """The settings of kernels that the plan of a job has because published runs have them."""
    if usual:
        yield UsualSettings(
            margin=usual.n_stating / usual.n_runs,
            kernels=usual.kernels,
            framework=usual.framework,
            chip=usual.chip,
            n_stating=usual.n_stating,
            n_runs=usual.n_runs,
            since=usual.since,
            overlap=usual.overlap if job.overlap == usual.overlap else (),
        )


def _token_prediction(
    model: ModelConfig, system: System, job: Train, rates: Calibration, chosen: Candidate
) -> Iterator[TokenPrediction]:
    """What the layers of multi-token prediction add to the step and the memory of the plan."""
    if not job.mtp_layers:
        return
    plain = replace(job, mtp_layers=0)
    without = rank.evaluate(model, system, plain, chosen.layout, rates, chosen.placement)
    yield TokenPrediction(
        margin=float(without.time.step_s / chosen.time.step_s),
        layers=job.mtp_layers,
        step_s=float(chosen.time.step_s - without.time.step_s),
        memory_bytes=float(chosen.memory.total - without.memory.total),
        on_last_stage=chosen.layout.is_pipelined,
    )


def _next_placement(
    model: ModelConfig, system: System, job: Train, rates: Calibration, chosen: Candidate
) -> training.NextPlacement | None:
    """The fastest placement of the chosen mesh that is slower than the chosen one."""
    steps = []
    for placement in place(system, chosen.mesh.sizes, best=True):
        step = LayoutStep(model, system, job, chosen.layout, placement)
        step_s = float(step.time(rates, profile_of(job, system.chip)).step_s)
        if step_s > (1 + SAME_TIME) * float(chosen.time.step_s):
            steps.append((step_s, describe_links(placement, chosen.mesh.sizes)))
    if not steps:
        return None
    step_s, links = min(steps, key=lambda step: step[0])
    return training.NextPlacement(placement=links, step_s=step_s)


def _estimate(
    model: ModelConfig,
    system: System,
    job: Train,
    rates: Calibration,
    chosen: Candidate,
    step_operations: tuple[Operation, ...],
) -> training.Estimate:
    time = chosen.time
    n_chips = system.n_chips
    peak = system.chip.peak(job.compute)
    flops = count.model_flops_per_token(model, job.seq, job.mtp_layers) * job.tokens_per_step
    step_s = float(time.step_s)
    run = _run_cost(step_s, system, job)
    stages = (step_operations, model.n_layers, chosen.layout)
    return training.Estimate(
        step_s=reasons.step_range(chosen),
        bound=reasons.bound(model, chosen, step_operations),
        compute_s=busiest_stage(*stages, lambda op: op.math_s),
        hbm_s=busiest_stage(*stages, lambda op: op.hbm_s),
        comm_s=nonzero(chosen.roofline.traffic_s),
        exposed_comm_s=sum(float(seconds) for seconds in time.comm_s.values()),
        expected_s=reasons.step_parts(chosen),
        rates=rates_used(_with_spread(model, system, job, rates, chosen.layout)),
        bubble_fraction=float(time.bubble_s) / step_s,
        mfu=mfu(flops, step_s, n_chips, peak),
        tokens_per_s=job.tokens_per_step / step_s,
        tokens_per_s_per_chip=job.tokens_per_step / step_s / n_chips,
        memory_bytes_per_chip=memory_bytes(chosen.memory),
        state_bytes_per_parameter=job.state_bytes,
        **run,
        joules=_energy_j(run["run_s"], system),
        at_mfu=_at_mfu(flops, system, job),
    )


def _with_spread(
    model: ModelConfig, system: System, job: Train, rates: Calibration, layout: Layout
) -> Calibration:
    """The rates, with a wider spread if no published run is sharded as the layout is."""
    if not is_known(system, rates) or layout_in_practice(model, system, job, layout):
        return rates
    return replace(rates, spread=spread_outside_practice(rates.spread))


def _at_mfu(flops: float, system: System, job: Train) -> training.AtMfu:
    peak = system.chip.peak(job.compute)
    step_s = compute_s(flops, system.n_chips, peak, REFERENCE_MFU)
    return training.AtMfu(mfu=REFERENCE_MFU, step_s=step_s, **_run_cost(step_s, system, job))


def _run_cost(step_s: float, system: System, job: Train) -> dict[str, Any]:
    """The fields `run_s`, `chip_hours` and `usd`; None if the run's tokens are not given."""
    if job.tokens is None:
        return {"run_s": None, "chip_hours": None, "usd": None}
    price = system.chip.usd_per_chip_hour
    run = cost.run(step_s, job.tokens, job.tokens_per_step, system.n_chips, price)
    return {"run_s": run.seconds, "chip_hours": run.chip_hours, "usd": run.usd}


def _energy_j(run_s: float | None, system: System) -> float | None:
    if run_s is None:
        return None
    return cost.energy_j(run_s, system.n_chips, system.chip.power_w)
