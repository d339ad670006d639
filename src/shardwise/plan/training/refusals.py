"""When there is no plan: which number broke it, and the nearest that work."""

from __future__ import annotations

import dataclasses

from shardwise import units
from shardwise.errors import DoesNotFit, NoStrategy
from shardwise.estimate.calibration import PEAK
from shardwise.hardware import Switched, System, Torus, legal_slices
from shardwise.models import ModelConfig
from shardwise.search.given import Fixed, fixed_of
from shardwise.search.model_sizes import tensor_widths, worth_cutting
from shardwise.search.training import rank
from shardwise.search.training.legal import batch_shards, legal_meshes
from shardwise.search.training.rank import Candidate
from shardwise.workload import Train

NO_PIPELINE = fixed_of({"pipe": 1})
NEAR = 1.25  # offer batches and machines within a quarter of what was asked


def no_strategy(model: ModelConfig, system: System, job: Train, fixed: Fixed) -> NoStrategy:
    """Why no mesh is legal, with batches and machines that have one."""
    problems = [
        f"no split of {system.n_chips:,} chips divides {job.batch:,} sequences of {job.seq:,} "
        f"tokens, {_sizes(model)}{fixed}."
    ]
    shards = batch_shards(model, job.seq, system)
    pieces = fixed.get("loss_chunks", 1)
    if isinstance(pieces, int) and job.tokens_per_step % pieces:
        problems.append(f"loss_chunks {pieces} divides the tokens of no chip.")
    if fixed.names:
        names = " and ".join(fixed.names)
        return NoStrategy(*problems, f"Leave {names} free, or choose other sizes.")
    if shards:
        listed = ", ".join(f"{s:,}" for s in shards[:8])
        problems.append(
            f"Without a pipeline it must be a multiple of one of {listed}: {system.n_chips:,} "
            "chips over the tensor and context sizes that divide the model."
        )
    offers = [*_batches(model, system, job, shards), *_machines(model, system, job)]
    if offers:
        problems.append("What works: " + ", or ".join(offers) + ".")
    return NoStrategy(*problems)


def _sizes(model: ModelConfig) -> str:
    widths = tensor_widths(model)
    return ", ".join(f"{k} {v:,}" for k, v in {**widths, "d_model": model.d_model}.items())


def _batches(model: ModelConfig, system: System, job: Train, shards: list[int]) -> list[str]:
    """The batch near the one asked for that runs best per token."""
    near = {-(-job.batch // s) * s for s in shards} | {job.batch // s * s for s in shards}
    near = {b for b in near if job.batch / NEAR <= b <= job.batch * NEAR}
    scored = []
    for batch in near:
        other = dataclasses.replace(job, batch=batch)
        try:
            best = rank.rank(model, system, other, PEAK, NO_PIPELINE, keep=1).candidates[0]
        except NoStrategy:
            continue
        if best.fits:
            scored.append((float(best.time.step_s) / batch, batch))
    return [
        f"--batch {batch}x{job.seq} ({batch / job.batch - 1:+.1%})"
        for _, batch in sorted(scored)[:1]
    ]


def _machines(model: ModelConfig, system: System, job: Train) -> list[str]:
    """The legal machine of the same chip, nearest in size, on which the batch divides."""
    found = []
    for other in nearby(system):
        meshes = legal_meshes(model, other, job, {})
        if any(worth_cutting(job.seq, mesh.context) for mesh in meshes):
            found.append((abs(other.n_chips - system.n_chips), other))
    found.sort(key=lambda pair: pair[0])
    return [f"{other.name} ({other.n_chips:,} chips)" for _, other in found[:1]]


def nearby(system: System) -> list[System]:
    """Machines of the same chip between half and twice the size."""
    low, high = system.n_chips / 2, system.n_chips * 2
    topology = system.topology
    if isinstance(topology, Torus):
        slices = [s for s in legal_slices(system.chip) if low <= s.n_chips <= high]
        near = sorted(slices, key=lambda s: abs(s.n_chips - topology.n_chips))[:200]
        return [renamed(system, s) for s in near if s != topology]
    sizes = [n for n in (2**k for k in range(24)) if low <= n <= high and n % topology.domain == 0]
    return [renamed(system, dataclasses.replace(topology, n_gpus=n)) for n in sizes]


def renamed(system: System, topology: Torus | Switched) -> System:
    """One machine of the same chip with another topology."""
    given = "".join(system.name.partition(",")[1:])
    name = f"{system.chip.name}:{topology}{given}"
    return dataclasses.replace(system, topology=topology, name=name, n_slices=1)


def does_not_fit(
    model: ModelConfig, system: System, job: Train, ranked: list[Candidate]
) -> DoesNotFit:
    """The part that is too large, and what would hold it."""
    least = min(ranked, key=lambda c: float(c.memory.total))
    memory = least.memory
    parts = {
        "weights": memory.weights,
        "gradients": memory.gradients,
        "optimizer": memory.optimizer,
        "activations": memory.activations,
        "logits and gathered weights": memory.other,
    }
    listed = ", ".join(f"{k} {units.show_gib(float(v))}" for k, v in parts.items() if v)
    over = float(memory.total) / memory.capacity
    margin, times = f" and {units.show_gib(float(memory.margin))} kept free", ""
    if over > 1:
        margin, times = "", f" (x{over:.1f})"
    problems = [
        f"does not fit: {model.name} on {system.name} needs {units.show_gib(float(memory.total))} "
        f"per chip at least{margin}, {units.show_gib(memory.capacity)} is there{times}.",
        f"That is {least.mesh}, remat {least.layout.policy}: {listed}.",
    ]
    if float(memory.activations + memory.other) > memory.capacity / 2:
        problems.append(
            "A shard already takes one sequence at a time: shorter sequences, or more chips to "
            "split them over, shrink the activations."
        )
    else:
        problems.append(
            f"Smallest machines that hold it: shardwise fit {model.name} {system.chip.name} --train"
        )
    return DoesNotFit(*problems)
