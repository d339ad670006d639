"""Explain a serving plan: what binds at which batch, and what each change would gain."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from shardwise.errors import ShardwiseError
from shardwise.hardware.scale import scaled
from shardwise.plan.decisions import Decision
from shardwise.plan.schema.common import Range, Reason
from shardwise.plan.schema.serving import Prefill, ServingPlan
from shardwise.plan.serving.changes import Change, Difference, change_of, changes, decode_only
from shardwise.plan.serving.decisions import decision_path, kv_context
from shardwise.plan.serving.estimate import output_usd
from shardwise.plan.serving.rebuild import engine_placement, rebuild
from shardwise.plan.serving.time_parts import (
    critical_batch,
    decode_range,
    decode_sides,
    largest,
    usual_compute,
)
from shardwise.search.serving.candidate import Candidate, Server
from shardwise.search.serving.evaluate import batch_unit
from shardwise.search.serving.rank import Request, rank

N_BATCHES = 6  # batches of the table, besides the plan's and the largest
MIN_FACTOR = 4  # from one batch to the next; larger where more batches would be needed


@dataclass(frozen=True, slots=True, kw_only=True)
class AtBatch:
    """The same engines with another number of sequences.

    Args:
        here: whether this is the plan's batch.
        step_s: seconds of a decoding pass.
        sides: seconds of the expected pass by what can bind it: weights (or flops), kv, network,
            software.
        bound: the largest side.
    """

    batch: int
    here: bool
    step_s: Range
    sides: dict[str, float]
    bound: str
    tpot_s: float
    tokens_per_s_per_chip: float
    usd_per_million_output_tokens: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Critical:
    """The batch of a pass from which FLOPs bind the matmuls, at peak rates.

    Args:
        kv_context: context length from which reading KV caches takes longer than the matmuls at
            every batch; None without caches.
    """

    weights: str
    compute: str
    batch: float
    kv_context: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingWhatIf:
    """The plan on a machine with some figures multiplied.

    Args:
        factors: name -> factor.
        same: the plan's deployment on that machine, bound by `bound`.
        best: the best deployment of the same batch on that machine; None without one.
    """

    factors: dict[str, float]
    same: Change
    bound: str
    best: Change | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingExplanation:
    """The explanation of a serving plan.

    Args:
        bound: what takes longest of a pass: weights, kv, flops, network or software.
        margin: seconds of that side over those of the next.
        batches: batches of one engine, from the fewest sequences to the most that fit.
        kv_batch: the fewest sequences whose KV caches take longer than all matmuls, if any.
        critical: critical batches of the matmuls by dtype, the plan's dtype first.
        prefill: the prefill of a prompt, and prefill engines per decode engine.
        changes: the plan's numbers, then those of each change; for decode engines alone where
            there are separate prefill engines.
        path: the decisions in the order of the book.
        why: the reasons of the plan.
        what_if: the plan on a changed machine, if any.
    """

    model: str
    hardware: str
    mesh: dict[str, int]
    precision: dict[str, str]
    context: float
    batch: int
    bound: str
    margin: float
    disaggregated: bool
    batches: tuple[AtBatch, ...]
    kv_batch: int | None
    max_batch: int
    critical: tuple[Critical, ...]
    prefill: Prefill
    changes: tuple[Change, ...]
    path: tuple[Decision, ...]
    why: tuple[Reason, ...]
    what_if: ServingWhatIf | None


def explain(plan: ServingPlan, what_if: Mapping[str, float] | None = None) -> ServingExplanation:
    """What binds a serving plan at which batch, and what would change it.

    Args:
        plan: from `shardwise.plan`, or loaded.
        what_if: figures of the machine to multiply: `{"hbm_bandwidth": 2}`.

    Raises:
        BadFile: the plan cannot be rebuilt. BadInput: the machine has no such figure.
    """
    _, chosen = rebuild(plan)
    decode_part = decode_only(chosen)
    server = decode_part.server
    changed = _what_if(decode_part, what_if) if what_if else None
    sides = decode_sides(server, decode_part.batch)
    bound, second = sorted(sides, key=lambda name: -sides[name])[:2]
    decode = plan.estimate.decode
    return ServingExplanation(
        model=plan.model.name,
        hardware=plan.hardware.name,
        mesh=plan.strategy.mesh,
        precision=plan.strategy.precision,
        context=decode.context,
        batch=decode_part.batch,
        bound=bound,
        margin=sides[bound] / sides[second],
        disaggregated=plan.strategy.disaggregated,
        batches=tuple(at_batch(decode_part, batch) for batch in _batches(decode_part)),
        kv_batch=decode.kv_batch,
        max_batch=decode.max_batch,
        critical=tuple(_critical(server)),
        prefill=plan.estimate.prefill,
        changes=changes(decode_part),
        path=decision_path(chosen, plan),
        why=plan.why,
        what_if=changed,
    )


def at_batch(chosen: Candidate, batch: int) -> AtBatch:
    """The same engines with `batch` sequences each."""
    other = replace(chosen, batch=batch)
    sides = decode_sides(chosen.server, batch)
    return AtBatch(
        batch=batch,
        here=batch == chosen.batch,
        step_s=decode_range(chosen.server, batch),
        sides=sides,
        bound=largest(sides),
        tpot_s=other.tpot_s,
        tokens_per_s_per_chip=other.tokens_per_s / other.chips,
        usd_per_million_output_tokens=output_usd(other),
    )


def _batches(chosen: Candidate) -> list[int]:
    """Batches by a constant factor, from the fewest sequences to the most that fit."""
    server = chosen.server
    fewest = int(batch_unit(server.config, server.layout, server.layout.sizes))
    factor = MIN_FACTOR
    while fewest * factor ** (N_BATCHES - 1) < server.max_batch:
        factor *= 2
    batches = {chosen.batch, server.max_batch}
    for power in range(N_BATCHES):
        if fewest * factor**power < server.max_batch:
            batches.add(fewest * factor**power)
    return sorted(batches)


def _critical(server: Server) -> Iterator[Critical]:
    """Critical batches for the plan's dtypes, then for others that the chip supports."""
    chip = server.rates.chip
    wide = server.rates.half_precision_dtype
    pairs = [
        (server.job.weights, usual_compute(server.job.compute, chip)),
        (wide, wide),
        ("int8", wide),
    ]
    for dtype in ("int8", "fp8", "int4", "fp4"):
        if dtype in chip.peak_flops_per_s:
            pairs.append((dtype, dtype))
    pairs.append(("int4", wide))
    for weights, compute in dict.fromkeys(pairs):
        job = replace(server.job, weights=weights, compute=compute)
        other = replace(server, job=job, rates=replace(server.rates, job=job))
        yield Critical(
            weights=weights,
            compute=compute,
            batch=critical_batch(server.config, other),
            kv_context=kv_context(other),
        )


def _what_if(chosen: Candidate, factors: Mapping[str, float]) -> ServingWhatIf:
    """The same engines, and the search again, on the changed machine."""
    server = chosen.server
    mesh = server.layout.mesh
    system = scaled(server.system, factors)
    links = {role: server.placement.describe(role) for role in mesh.sizes}
    changed = replace(
        server,
        system=system,
        rates=replace(server.rates, chip=system.chip),
        placement=engine_placement(system, mesh, links),
    )
    job = replace(chosen.job, batch=chosen.batch * mesh.data)
    request = Request(
        config=server.config, where=system, jobs=[job], peak=server.rates.ideal, disaggregate=False
    )
    best = None
    with contextlib.suppress(ShardwiseError):
        searched = rank(request, 0).candidates[0]
        best = change_of(Difference(kind="searched"), searched, other_engine=True)
    return ServingWhatIf(
        factors=dict(factors),
        same=change_of(Difference(kind="none"), replace(chosen, server=changed)),
        bound=largest(decode_sides(changed, chosen.batch)),
        best=best,
    )
