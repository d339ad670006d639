"""Explain a serving plan: what bounds it at which batch, and what each change would gain."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from shardwise.errors import ShardwiseError
from shardwise.hardware.scale import scaled
from shardwise.plan.decisions import Decision
from shardwise.plan.schema.common import Range, Reason
from shardwise.plan.schema.serving import Prefill, ServingPlan
from shardwise.plan.serving.changes import (
    Change,
    Difference,
    changes,
    decode_engines_alone,
    make_change,
)
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
from shardwise.search.serving.rank import Request, rank

N_BATCHES = 6  # batches in the table, besides the plan's and the largest that fits
MIN_FACTOR = 4  # between two batches of the table; larger if there would be too many batches


@dataclass(frozen=True, slots=True, kw_only=True)
class AtBatch:
    """The numbers of the plan's engines with another batch.

    Args:
        batch: sequences of one engine.
        here: whether this is the plan's batch.
        step_s: seconds of a decoding pass.
        sides: what can bound the pass -> its expected seconds: weights (or flops), kv, network,
            software.
        bound: the largest of `sides`.
        prompts_s: seconds of TPOT in which prompts of other requests are processed.
        usd_per_million_output_tokens: None if the chip has no public price.
    """

    batch: int
    here: bool
    step_s: Range
    sides: dict[str, float]
    bound: str
    tpot_s: float
    prompts_s: float
    tokens_per_s_per_chip: float
    usd_per_million_output_tokens: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Critical:
    """The batch of a pass above which FLOPs bound the matmuls, for one pair of dtypes.

    Args:
        weights, compute: dtypes of weights and of matmuls.
        batch: sequences of a pass, at peak rates.
        kv_context: context length above which reading KV caches takes longer than the matmuls at
            every batch; None if no cache grows with the context.
    """

    weights: str
    compute: str
    batch: float
    kv_context: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingWhatIf:
    """The plan on a changed machine, some of whose numbers are multiplied by factors.

    Args:
        factors: name of a number of the machine -> its factor.
        same: the plan's deployment on the changed machine.
        bound: what takes longest of a pass of `same`.
        best: the best deployment with the same batch on the changed machine; None if there is none.
    """

    factors: dict[str, float]
    same: Change
    bound: str
    best: Change | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingExplanation:
    """The explanation of a serving plan.

    Args:
        precision: dtypes of `weights`, `kv` and `compute`.
        context: mean number of keys that a sequence attends to.
        batch: sequences of one decode engine.
        bound: what takes longest of a decoding pass: weights, kv, flops, network or software.
        margin: seconds of the bound over the seconds of what takes second longest.
        batches: the plan's engines at several batches, from the smallest to the largest that fits.
        kv_batch: the fewest sequences for which reading KV caches takes longer than the matmuls;
            None if it never does.
        critical: the critical batch for several dtypes, those of the plan first.
        prefill: the prefill of a prompt, and prefill engines per decode engine.
        changes: the plan's numbers, then those of each change. If there are separate prefill
            engines, both are for the decode engines alone.
        path: the decisions in the order of the book.
        what_if: the plan on a changed machine, if one was asked for.
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
    """Explain a serving plan: what bounds it at which batch, and what would change it.

    Args:
        plan: from `shardwise.plan`, or loaded from a file.
        what_if: numbers of the machine -> factors to multiply them by: `{"hbm_bandwidth": 2}`.

    Raises:
        BadFile: the inputs of the plan cannot be rebuilt.
        BadInput: the machine has no number of a name in `what_if`.
    """
    _, chosen = rebuild(plan)
    decode_engines = decode_engines_alone(chosen)
    server = decode_engines.server
    changed = _what_if(decode_engines, what_if) if what_if else None
    sides = decode_sides(server, decode_engines.batch)
    bound, second = sorted(sides, key=lambda name: -sides[name])[:2]
    decode = plan.estimate.decode
    return ServingExplanation(
        model=plan.model.name,
        hardware=plan.hardware.name,
        mesh=plan.strategy.mesh,
        precision=plan.strategy.precision,
        context=decode.context,
        batch=decode_engines.batch,
        bound=bound,
        margin=sides[bound] / sides[second],
        disaggregated=plan.strategy.disaggregated,
        batches=tuple(at_batch(decode_engines, batch) for batch in _table_batches(decode_engines)),
        kv_batch=decode.kv_batch,
        max_batch=decode.max_batch,
        critical=tuple(_critical_batches(server)),
        prefill=plan.estimate.prefill,
        changes=changes(decode_engines),
        path=decision_path(chosen, plan),
        why=plan.why,
        what_if=changed,
    )


def at_batch(chosen: Candidate, batch: int) -> AtBatch:
    """Evaluate the same engines with `batch` sequences each."""
    resized = replace(chosen, batch=batch)
    sides = decode_sides(chosen.server, batch)
    return AtBatch(
        batch=batch,
        here=batch == chosen.batch,
        step_s=decode_range(chosen.server, batch),
        sides=sides,
        bound=largest(sides),
        tpot_s=resized.tpot_s,
        prompts_s=resized.tpot_s * float(resized.steady.busy),
        tokens_per_s_per_chip=resized.tokens_per_s / resized.chips,
        usd_per_million_output_tokens=output_usd(resized),
    )


def _table_batches(chosen: Candidate) -> list[int]:
    """Batches for the table, in equal factors up to the largest that fits, with the plan's."""
    server = chosen.server
    fewest = server.batch_unit
    factor = MIN_FACTOR
    while fewest * factor ** (N_BATCHES - 1) < server.max_batch:
        factor *= 2
    batches = {chosen.batch, server.max_batch}
    for power in range(N_BATCHES):
        if fewest * factor**power < server.max_batch:
            batches.add(fewest * factor**power)
    return sorted(batches)


def _critical_batches(server: Server) -> Iterator[Critical]:
    """The critical batch for the plan's dtypes, then for others that the chip supports."""
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
        variant = replace(server, job=job, rates=replace(server.rates, job=job))
        yield Critical(
            weights=weights,
            compute=compute,
            batch=critical_batch(server.config, variant),
            kv_context=kv_context(variant),
        )


def _what_if(chosen: Candidate, factors: Mapping[str, float]) -> ServingWhatIf:
    """Evaluate the same engines, and search again, on the changed machine."""
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
        config=server.config,
        hardware=system,
        jobs=[job],
        peak=server.rates.ideal,
        disaggregate=False,
    )
    best = None
    with contextlib.suppress(ShardwiseError):
        searched = rank(request, 0).candidates[0]
        best = make_change(Difference(kind="searched"), searched, other_engine=True)
    return ServingWhatIf(
        factors=dict(factors),
        same=make_change(Difference(kind="none"), replace(chosen, server=changed)),
        bound=largest(decode_sides(changed, chosen.batch)),
        best=best,
    )
