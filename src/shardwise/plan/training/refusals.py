"""Errors for jobs without a training plan: which number is wrong, and what would work."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

from shardwise import units
from shardwise.errors import DoesNotFit, NoStrategy
from shardwise.estimate.calibration import PEAK
from shardwise.hardware import System, Torus, legal_slices
from shardwise.models import ModelConfig
from shardwise.plan.training.limit_text import limit_text
from shardwise.search.given import Fixed, fixed_of
from shardwise.search.model_sizes import tensor_widths, worth_sharding
from shardwise.search.training import rank
from shardwise.search.training.framework_limits import is_known, limit_of
from shardwise.search.training.legal import batch_shards, legal_meshes
from shardwise.search.training.rank import Candidate
from shardwise.search.training.runtime_limits import layout_limits
from shardwise.vocabulary import NO_SCHEDULE
from shardwise.workload import Train

NO_PIPELINE = fixed_of({"pipe": 1})
MAX_BATCH_FACTOR = 1.25  # suggested batches are at most this factor away from the given one


def no_strategy(model: ModelConfig, system: System, job: Train, fixed: Fixed) -> NoStrategy:
    """Make the error that no mesh is legal, with a batch and a machine that would have one."""
    sizes = {**tensor_widths(model), "d_model": model.d_model}
    listed = ", ".join(f"{name} {size:,}" for name, size in sizes.items())
    problems = [
        f"no split of {system.n_chips:,} chips divides {job.batch:,} sequences of {job.seq:,} "
        f"tokens, {listed}{fixed}."
    ]
    n_chunks = fixed.get("loss_chunks", 1)
    if isinstance(n_chunks, int) and job.tokens_per_step % n_chunks:
        problems.append(f"loss_chunks {n_chunks} does not divide the tokens of a chip.")
    problems += _contradictions(system, fixed)
    problems += _microbatches(job, fixed)
    problems += _any_layout(model, system, job, fixed)
    if fixed.names:
        names = " and ".join(fixed.names)
        return NoStrategy(*problems, f"Leave {names} free, or choose other sizes.")
    shards = batch_shards(model, job.seq, system)
    if shards:
        listed = ", ".join(f"{n_shards:,}" for n_shards in shards[:8])
        problems.append(
            f"Without a pipeline it must be a multiple of one of {listed}: {system.n_chips:,} "
            "chips over the tensor and context sizes that divide the model."
        )
    options = [*_nearby_batch(model, system, job, shards), *_nearby_machine(model, system, job)]
    if options:
        problems.append("What works: " + ", or ".join(options) + ".")
    return NoStrategy(*problems)


def _any_layout(model: ModelConfig, system: System, job: Train, fixed: Fixed) -> Iterator[str]:
    """A strategy that fits, and that the search leaves out because nothing runs it for the job."""
    if fixed.any_layout:
        return
    best = rank.best_of_any_layout(model, system, job, fixed)
    if best is None:
        return
    runner = "the trainer"
    reasons = [*map(limit_text, layout_limits(model, job, best.layout, system.chip))]
    if is_known(job.framework):
        runner = job.framework
        limit = limit_of(job.framework, model, system.chip, best.layout)
        reasons = [f"{limit.asked}; {limit.has}."] if limit else []
    yield (
        f"{best.mesh} fits, but {runner} does not run it: {' '.join(reasons)} "
        "--any-layout plans it."
    )


def _microbatches(job: Train, fixed: Fixed) -> Iterator[str]:
    """A batch that the fixed microbatches and shards do not divide, or do not make."""
    names = ("micro_batch", "n_microbatches", "data", "fsdp", "expert")
    factors = {name: n for name in names if (n := fixed.numbers.get(name, 1)) > 1}
    product = math.prod(factors.values())
    is_whole = {*names} <= {*fixed}
    if job.batch % product or (is_whole and job.batch != product):
        yield (
            f"{' x '.join(f'{name} {n}' for name, n in factors.items())} = {product:,} sequences "
            f"{'are not' if is_whole else 'do not divide'} the batch of {job.batch:,}."
        )


def _contradictions(system: System, fixed: Fixed) -> Iterator[str]:
    """Fixed settings that no mesh can have together."""
    sizes = fixed.sizes
    limits = dict(fixed.max_sizes)
    for role, size in sizes.items():
        if size > limits.get(role, size):
            yield f"{role} {size} is above {role} at most {limits[role]}."
    chips_left = system.n_chips // math.prod(sizes.values())

    def is_one(role: str) -> bool:
        return sizes.get(role, min(chips_left, limits.get(role, chips_left))) == 1

    needed_roles = {"context_kind": "context", "virtual": "pipe"}
    if fixed.get("schedule", NO_SCHEDULE) != NO_SCHEDULE:
        needed_roles["schedule"] = "pipe"
    for setting, role in needed_roles.items():
        if setting in fixed and is_one(role):
            left = "" if role in sizes or limits.get(role) == 1 else ": no chips are left for it"
            yield f"{setting} {fixed[setting]} needs {role} above 1{left}."
    zero = fixed.get("zero", 3)
    if zero != 3 and sizes.get("fsdp", 1) > 1:
        yield f"fsdp {sizes['fsdp']} shards weights, which is zero 3, not zero {zero}."
    if "zero" in fixed and zero == 3 and sizes.get("fsdp") == 1:
        yield "zero 3 shards weights over fsdp, which is 1: write fsdp in place of data."


def _nearby_batch(model: ModelConfig, system: System, job: Train, shards: list[int]) -> list[str]:
    """The nearby batch with the least time per token, as text of an option; empty without one."""
    batches = set()
    for n_shards in shards:
        below = job.batch // n_shards * n_shards
        above = -(-job.batch // n_shards) * n_shards
        batches |= {below, above}
    times = []
    for batch in batches:
        if not job.batch / MAX_BATCH_FACTOR <= batch <= job.batch * MAX_BATCH_FACTOR:
            continue
        resized_job = dataclasses.replace(job, batch=batch)
        try:
            best = rank.rank(model, system, resized_job, PEAK, NO_PIPELINE, keep=1).candidates[0]
        except NoStrategy:
            continue
        if best.fits:
            times.append((float(best.time.step_s) / batch, batch))
    if not times:
        return []
    _, batch = min(times)
    return [f"--batch {batch}x{job.seq} ({batch / job.batch - 1:+.1%})"]


def _nearby_machine(model: ModelConfig, system: System, job: Train) -> list[str]:
    """The machine of the same chip, nearest in size, that has a legal mesh; empty without one."""
    for machine in sorted(nearby(system), key=lambda near: abs(near.n_chips - system.n_chips)):
        meshes = legal_meshes(model, machine.n_chips, job, {})
        is_legal = any(worth_sharding(job.seq, mesh.context) for mesh in meshes)
        if is_legal and rank.has_strategy(model, machine, job):
            return [f"{machine.name} ({machine.n_chips:,} chips)"]
    return []


def nearby(system: System) -> list[System]:
    """Machines of the same chip with half to twice as many chips."""
    low = system.n_chips / 2
    high = system.n_chips * 2
    topology = system.topology
    if isinstance(topology, Torus):
        slices = [torus for torus in legal_slices(system.chip) if low <= torus.n_chips <= high]
        slices.sort(key=lambda torus: abs(torus.n_chips - topology.n_chips))
        return [system.resized(torus) for torus in slices[:200] if torus != topology]
    machines = []
    for power in range(24):
        n_gpus = 2**power
        is_near = low <= n_gpus <= high and n_gpus != topology.n_gpus
        if is_near and n_gpus % topology.domain == 0:
            machines.append(system.resized(dataclasses.replace(topology, n_gpus=n_gpus)))
    return machines


def does_not_fit(
    model: ModelConfig, system: System, job: Train, fixed: Fixed, candidates: list[Candidate]
) -> DoesNotFit:
    """Make the error that no candidate fits in memory: the least that is needed, and what helps."""
    smallest = min(candidates, key=lambda candidate: float(candidate.memory.total))
    memory = smallest.memory
    parts = {
        "weights": memory.weights,
        "gradients": memory.gradients,
        "optimizer": memory.optimizer,
        "activations": memory.activations,
        "logits and gathered weights": memory.other,
    }
    listed = ", ".join(f"{part} {units.show_gib(float(n))}" for part, n in parts.items() if n)
    total = float(memory.total)
    excess = total / memory.capacity
    margin = f" and {units.show_gib(float(memory.margin))} kept free"
    factor = ""
    if excess > 1:
        margin = ""
        factor = f" (x{excess:.{1 if excess >= 1.1 else 2}f})"
    problems = [
        f"does not fit: {model.name} on {system.name} needs {units.show_gib(total)} per chip at "
        f"least{margin}, {units.show_gib(memory.capacity)} is there{factor}.",
        f"That is {smallest.mesh}, remat {smallest.layout.policy}: {listed}.",
    ]
    problems += _any_layout(model, system, job, fixed)
    work = float(memory.activations + memory.other)
    if work > memory.capacity / 2 and float(memory.total) - work < memory.capacity:
        problems.append(_smaller_activations(model, system, job, fixed, smallest))
    else:
        problems.append(
            "Smallest machines that hold it: "
            f"shardwise fit {model.name} {system.chip.spelling} --train"
        )
    return DoesNotFit(*problems)


def _smaller_activations(
    model: ModelConfig, system: System, job: Train, fixed: Fixed, smallest: Candidate
) -> str:
    """What shrinks the activations of a layout: a smaller microbatch, if the given one has others.

    The largest microbatch that fits is named; with the same batch it takes more microbatches.
    """
    given = smallest.layout.micro_batch
    if given == 1:
        return (
            "A shard already takes one sequence at a time: shorter sequences, or more chips to "
            "split them over, shrink the activations."
        )
    others = {name: value for name, value in fixed.items() if name != "n_microbatches"}
    for size in range(given // 2, 0, -1):
        if given % size:
            continue
        try:
            ranking = rank.rank(
                model, system, job, PEAK, fixed.only(**{**others, "micro_batch": size}), keep=1
            )
        except NoStrategy:
            continue
        if ranking.candidates[0].fits:
            return (
                f"A shard takes {given:,} sequences at a time (micro_batch {given:,}). With "
                f"micro_batch {size:,} it fits: {given // size:,} times as many microbatches for "
                "the same batch."
            )
    return (
        f"A shard takes {given:,} sequences at a time (micro_batch {given:,}). A smaller "
        "micro_batch alone is not enough: shorter sequences, or more chips to split them over, "
        "shrink the activations too."
    )
