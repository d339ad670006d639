"""Make a plan: search or take a strategy, and write down everything about it."""

from __future__ import annotations

from collections.abc import Mapping

from shardwise.errors import BadInput, NoStrategy, NotDivisible, raise_all
from shardwise.estimate.calibration import PEAK, Calibration, calibration
from shardwise.formulas import cost
from shardwise.formulas.flops import REFERENCE_MFU, compute_s, mfu
from shardwise.hardware import System
from shardwise.models import ModelConfig, count
from shardwise.plan.machine import memory_bytes, planned_hardware
from shardwise.plan.schema import training
from shardwise.plan.schema.architecture import planned_model
from shardwise.plan.schema.common import Operation, RatesUsed
from shardwise.plan.training import reasons, refusals
from shardwise.plan.training.operations import operations
from shardwise.plan.xla_flags import flags_for
from shardwise.search.given import NOTHING, Choices, Fixed
from shardwise.search.training import rank
from shardwise.search.training.forms import read_fixed
from shardwise.search.training.legal import layout_problems, problems
from shardwise.search.training.rank import Candidate
from shardwise.strategy.layout import Layout, rules_of
from shardwise.strategy.mesh import Mesh
from shardwise.workload import Train


def plan(
    model: ModelConfig,
    system: System,
    job: Train,
    fixed: Choices | None = None,
    *,
    most: Mapping[str, int] | None = None,
    peak: bool = False,
) -> training.Plan:
    """The best plan.

    Args:
        model: the architecture.
        system: the machine.
        job: the work.
        fixed: what is given of a strategy: sizes of mesh roles, `micro_batch`, `n_microbatches`,
            `virtual`, `zero`, `loss_chunks`, and the words `schedule`, `remat`, `context_kind`:
            `{"tensor": 8, "schedule": "1f1b"}`.
        most: largest sizes of mesh roles.
        peak: expect the chip's peak rates, as the book does, and not what it reaches in practice.

    Raises:
        UnknownName: a role or word that is none. NotDivisible: a fixed size that divides nothing.
        NoStrategy: no legal split; the message says what would work.
        DoesNotFit: no legal split fits into memory.
        UnknownFigure: a figure that the chip's file does not have.
    """
    return search(model, system, job, fixed, n=1, most=most, peak=peak)[0]


def search(
    model: ModelConfig,
    system: System,
    job: Train,
    fixed: Choices | None = None,
    n: int = 5,
    *,
    most: Mapping[str, int] | None = None,
    peak: bool = False,
) -> list[training.Plan]:
    """The `n` best plans on different meshes, best first. Raises as `plan` does."""
    _check(model, system, job)
    given = read_fixed(fixed, most)
    raise_all(NotDivisible, problems(model, system, job, given.sizes, whole=False))
    cal = rates(system, peak=peak)
    try:
        ranking = rank.rank(model, system, job, cal, given, keep=max(n, rank.SHOWN))
    except NoStrategy:
        raise refusals.no_strategy(model, system, job, given) from None
    ranked = ranking.candidates
    if not ranked[0].fits:
        raise refusals.does_not_fit(model, system, job, ranked)
    fitting = [c for c in ranked if c.fits][:n]
    return [_write(model, system, job, cal, c, ranked, given) for c in fitting]


def evaluate(
    model: ModelConfig,
    system: System,
    job: Train,
    split: Mesh | Layout,
    words: Choices | None = None,
    *,
    peak: bool = False,
) -> training.Plan:
    """The plan of one given mesh under its best form, or of one layout as it is, on the best
    placement, whether it fits or not.

    Args:
        words: with a mesh, what else of the strategy is given: `{"schedule": "1f1b", "zero": 1}`.

    Raises:
        NotDivisible: the mesh is not legal; every reason, with what would be.
    """
    _check(model, system, job)
    mesh = split if isinstance(split, Mesh) else split.mesh
    given = read_fixed({**mesh.sizes, **(words or {})})
    raise_all(NotDivisible, problems(model, system, job, mesh.sizes, whole=True))
    cal = rates(system, peak=peak)
    if isinstance(split, Mesh):
        try:
            ranked = rank.rank(model, system, job, cal, given, keep=1).candidates
        except NoStrategy:
            raise refusals.no_strategy(model, system, job, given) from None
    else:
        if split.global_batch != job.batch:
            raise NotDivisible(
                f"the layout computes {split.global_batch:,} sequences a step (micro_batch "
                f"{split.micro_batch} x n_microbatches {split.n_microbatches} x "
                f"{split.data_shards:,} shards); the batch has {job.batch:,}."
            )
        raise_all(NotDivisible, layout_problems(model, split, job.seq))
        ranked = [rank.evaluate(model, system, job, split, cal)]
    return _write(model, system, job, cal, ranked[0], ranked)


def rates(system: System, *, peak: bool) -> Calibration:
    """What the chip reaches, or its peaks."""
    return PEAK if peak else calibration(system.chip.name)


def _check(model: ModelConfig, system: System, job: Train) -> None:
    """Names are read by `sw.model` and `sw.hardware`; a plan takes what they return."""
    wanted = (
        (model, ModelConfig, "sw.model(...)"),
        (system, System, "sw.hardware(...)"),
        (job, Train, "sw.Train(...)"),
    )
    wrong = [(given, by) for given, kind, by in wanted if not isinstance(given, kind)]
    raise_all(BadInput, [f"{given!r} is not what {by} returns." for given, by in wrong])
    if job.offload:
        system.chip.need("pcie.bandwidth")


def _write(
    model: ModelConfig,
    system: System,
    job: Train,
    cal: Calibration,
    chosen: Candidate,
    ranked: list[Candidate],
    given: Fixed = NOTHING,
) -> training.Plan:
    mesh, layout = chosen.mesh.sizes, chosen.layout
    works = operations(chosen)
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
        ),
        strategy=training.PlannedStrategy(
            mesh=mesh,
            placement={r: chosen.placement.describe(r) for r, n in mesh.items() if n > 1},
            rules=dict(rules_of(layout)),
            remat=layout.policy,
            precision={
                **{name: getattr(job, name) for name in training.PRECISION},
                "reduce": job.reduce or job.gradients,
            },
            **{name: getattr(layout, name) for name in training.LAYOUT_WORDS},
            fixed=dict(given),
            most=dict(given.max_sizes),
        ),
        estimate=_estimate(model, system, job, cal, chosen, works),
        operations=works,
        why=reasons.reasons(model, system, job, chosen, ranked),
        alternatives=reasons.alternatives(chosen, ranked),
        xla_flags=flags_for(system),
    )


def _estimate(
    model: ModelConfig,
    system: System,
    job: Train,
    cal: Calibration,
    chosen: Candidate,
    works: tuple[Operation, ...],
) -> training.Estimate:
    time, chips = chosen.time, system.n_chips
    peak = system.chip.peak(job.compute)
    flops = count.model_flops_per_token(model, job.seq) * job.tokens_per_step
    expected = float(time.step_s)
    run = _run(expected, system, job)
    reference_s = compute_s(flops, chips, peak, REFERENCE_MFU)
    reference = _run(reference_s, system, job)
    return training.Estimate(
        step_s=reasons.step_range(chosen),
        bound=reasons.bound(chosen, works),
        compute_s=sum(op.math_s for op in works),
        hbm_s=sum(op.hbm_s for op in works),
        comm_s={role: float(t) for role, t in chosen.roofline.traffic_s.items() if t > 0},
        exposed_comm_s=sum(float(t) for t in time.comm_s.values()),
        expected_s=reasons.parts_of(chosen),
        rates=RatesUsed(name=cal.name, as_of=cal.as_of, source=cal.source, spread=cal.spread),
        bubble_fraction=float(time.bubble_s) / expected,
        mfu=mfu(flops, expected, chips, peak),
        tokens_per_s=job.tokens_per_step / expected,
        tokens_per_s_per_chip=job.tokens_per_step / expected / chips,
        memory_bytes_per_chip=memory_bytes(chosen.memory),
        run_s=run.seconds if run else None,
        chip_hours=run.chip_hours if run else None,
        usd=run.usd if run else None,
        joules=cost.energy_j(run.seconds, chips, system.chip.power_w) if run else None,
        at_mfu=training.AtMfu(
            mfu=REFERENCE_MFU,
            step_s=reference_s,
            run_s=reference.seconds if reference else None,
            chip_hours=reference.chip_hours if reference else None,
            usd=reference.usd if reference else None,
        ),
    )


def _run(step_s: float, system: System, job: Train) -> cost.Run | None:
    if job.tokens is None:
        return None
    return cost.run(
        step_s, job.tokens, job.tokens_per_step, system.n_chips, system.chip.usd_per_chip_hour
    )
