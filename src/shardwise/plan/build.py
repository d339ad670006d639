"""Make a plan: search or take a strategy, and write down everything about it."""

from __future__ import annotations

from collections.abc import Mapping

from shardwise.errors import BadInput, BadShape, NoStrategy, NotDivisible, UnknownName, raise_all
from shardwise.estimate import cost
from shardwise.hardware import System, Torus
from shardwise.models import ModelConfig, count
from shardwise.plan import refusals, value, why
from shardwise.plan.operations import operations
from shardwise.search import train
from shardwise.search.legal import problems
from shardwise.search.train import Candidate
from shardwise.strategy.mesh import INSIDE_OUT, Mesh
from shardwise.strategy.rules import TRAIN, only
from shardwise.workload import Train


def plan(
    model: ModelConfig, system: System, job: Train, fixed: Mapping[str, int] | None = None
) -> value.Plan:
    """The best plan.

    Args:
        model: the architecture.
        system: the machine.
        job: the work.
        fixed: mesh roles whose size is given, `{"tensor": 8}`.

    Raises:
        UnknownName: a role that is none. NotDivisible: a fixed size that divides nothing.
        NoStrategy: no legal split; the message says what would work.
        DoesNotFit: no legal split fits into memory.
        UnknownFigure: a figure that the chip's file does not have.
    """
    return search(model, system, job, fixed, n=1)[0]


def search(
    model: ModelConfig,
    system: System,
    job: Train,
    fixed: Mapping[str, int] | None = None,
    n: int = 5,
) -> list[value.Plan]:
    """The `n` best plans, best first. Raises as `plan` does."""
    _check(model, system, job)
    fixed = dict(fixed or {})
    for role, size in fixed.items():
        if role not in INSIDE_OUT:
            raise UnknownName("mesh role", role, INSIDE_OUT)
        if not isinstance(size, int):
            raise BadShape(f"{role} {size!r} is not a whole number.")
    Mesh(**fixed)
    raise_all(NotDivisible, problems(model, job, system, fixed, whole=False))
    try:
        ranked = train.rank(model, job, system, fixed, keep=max(n, train.SHOWN))
    except NoStrategy:
        raise refusals.no_strategy(model, job, system, fixed) from None
    if not ranked[0].fits:
        raise refusals.does_not_fit(model, job, system, ranked)
    fitting = [c for c in ranked if c.fits][:n]
    return [_write(model, system, job, c, ranked) for c in fitting]


def evaluate(model: ModelConfig, system: System, job: Train, mesh: Mesh) -> value.Plan:
    """The plan of one given mesh on its best placement, whether it fits or not.

    Raises:
        NotDivisible: the mesh is not legal; every reason, with what would be.
    """
    _check(model, system, job)
    raise_all(NotDivisible, problems(model, job, system, mesh.sizes, whole=True))
    ranked = train.rank(model, job, system, mesh.sizes, keep=1)
    return _write(model, system, job, ranked[0], ranked)


def _check(model: ModelConfig, system: System, job: Train) -> None:
    """Names are read by `sw.model` and `sw.hardware`; a plan takes what they return."""
    wanted = (
        (model, ModelConfig, "sw.model(...)"),
        (system, System, "sw.hardware(...)"),
        (job, Train, "sw.Train(...)"),
    )
    wrong = [(given, by) for given, kind, by in wanted if not isinstance(given, kind)]
    raise_all(BadInput, [f"{given!r} is not what {by} returns." for given, by in wrong])


def _write(
    model: ModelConfig, system: System, job: Train, chosen: Candidate, ranked: list[Candidate]
) -> value.Plan:
    mesh = chosen.mesh.sizes
    return value.Plan(
        model=_model(model),
        hardware=_hardware(system),
        workload=value.PlannedWork(
            kind="train",
            batch=job.batch,
            seq=job.seq,
            tokens=job.tokens,
            tokens_per_step=job.tokens_per_step,
            optimizer=job.optimizer,
        ),
        strategy=value.PlannedStrategy(
            mesh=mesh,
            placement={r: chosen.placement.describe(r) for r, n in mesh.items() if n > 1},
            rules=only(TRAIN, mesh),
            schedule="none",
            n_microbatches=chosen.n_microbatches,
            remat=chosen.remat,
            precision={
                "weights": job.weights,
                "compute": job.compute,
                "gradients": job.gradients,
                "moments": job.moments,
                "master": job.master,
            },
            zero=3 if chosen.mesh.fsdp * chosen.mesh.context > 1 else 0,
        ),
        estimate=_estimate(model, system, job, chosen),
        operations=operations(model, job, system.chip, chosen),
        why=why.reasons(model, job, system, chosen, ranked),
        alternatives=why.alternatives(chosen, ranked),
    )


def _model(model: ModelConfig) -> value.PlannedModel:
    counts = count.parameters(model)
    import msgspec

    return value.PlannedModel(
        name=model.name,
        source=model.source,
        family=model.family,
        n_parameters=counts.total,
        n_active_parameters=counts.active,
        n_layers=model.n_layers,
        d_model=model.d_model,
        d_ff=model.d_ff,
        n_heads=model.n_heads,
        n_kv_heads=model.n_kv_heads,
        d_head=model.d_head,
        vocab=model.vocab,
        n_experts=model.n_experts,
        experts_per_token=model.experts_per_token,
        architecture=msgspec.json.decode(msgspec.json.encode(model)),
    )


def _hardware(system: System) -> value.PlannedHardware:
    return value.PlannedHardware(
        name=system.name,
        chip=system.chip.name,
        topology=topology_text(system),
        slices=system.n_slices,
        n_chips=system.n_chips,
        as_of=system.chip.as_of,
        figures={
            name: float(figure.value)
            for name, figure in system.chip.figures.items()
            if isinstance(figure.value, int | float)
        },
    )


def topology_text(system: System) -> str:
    """`torus 16x20x28, all axes wrap` or `2,048 nodes of 8`."""
    topology = system.topology
    if isinstance(topology, Torus):
        wraps = [letter for letter, w in zip("xyzw", topology.wrapped, strict=False) if w]
        ends = "all axes wrap" if len(wraps) == topology.n_axes else ", ".join(wraps) + " wraps"
        return f"torus {topology}, {ends if wraps else 'no axis wraps'}"
    return f"{topology.n_nodes:,} nodes of {min(topology.domain, topology.n_gpus)}"


def _estimate(model: ModelConfig, system: System, job: Train, chosen: Candidate) -> value.Estimate:
    spent, chips = chosen.cost, system.n_chips
    peak = system.chip.peak(job.compute)
    flops = count.model_flops_per_token(model, job.seq) * job.tokens_per_step
    expected = float(spent.expected)
    run = _run(expected, system, job)
    reference_s = cost.training_s(flops, chips, peak, cost.REFERENCE_MFU)
    reference = _run(reference_s, system, job)
    memory = spent.memory
    return value.Estimate(
        step_s=step_range(chosen),
        bound=why.bound(chosen),
        compute_s=float(spent.compute_s),
        hbm_s=float(spent.hbm_s),
        comm_s={role: float(t) for role, t in spent.comm_s.items()},
        exposed_comm_s=max(0.0, expected - float(spent.roofline_s)),
        bubble_fraction=0.0,
        mfu=cost.mfu(flops, expected, chips, peak),
        tokens_per_s=job.tokens_per_step / expected,
        tokens_per_s_per_chip=job.tokens_per_step / expected / chips,
        memory_bytes_per_chip=value.MemoryBytes(
            weights=float(memory.weights),
            gradients=float(memory.gradients),
            optimizer=float(memory.optimizer),
            activations=float(memory.activations),
            kv_cache=float(memory.kv_cache),
            other=float(memory.other),
            total=float(memory.total),
            capacity=memory.capacity,
        ),
        run_s=run.seconds if run else None,
        chip_hours=run.chip_hours if run else None,
        usd=run.usd if run else None,
        at_mfu=value.AtMfu(
            mfu=cost.REFERENCE_MFU,
            step_s=reference_s,
            run_s=reference.seconds if reference else None,
            chip_hours=reference.chip_hours if reference else None,
            usd=reference.usd if reference else None,
        ),
    )


def step_range(candidate: Candidate) -> value.Range:
    """The three step times of a candidate, seconds."""
    spent = candidate.cost
    return value.Range(
        lower=float(spent.lower), expected=float(spent.expected), upper=float(spent.upper)
    )


def _run(step_s: float, system: System, job: Train) -> cost.Run | None:
    if job.tokens is None:
        return None
    return cost.run(
        step_s, job.tokens, job.tokens_per_step, system.n_chips, system.chip.usd_per_chip_hour
    )
