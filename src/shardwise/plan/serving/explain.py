"""Explain a serving plan: what binds at which batch, from where on, and what buys what."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from shardwise.errors import ShardwiseError
from shardwise.estimate.serving.steady_state import in_flight
from shardwise.hardware.scale import scaled
from shardwise.plan.decisions import Decision
from shardwise.plan.schema.common import Range, Reason
from shardwise.plan.schema.serving import Prefill, ServingPlan
from shardwise.plan.serving.changes import Change, Difference, changes, generating, told
from shardwise.plan.serving.decisions import kv_context, path
from shardwise.plan.serving.estimate import usd
from shardwise.plan.serving.rebuild import engine_placement, rebuild
from shardwise.plan.serving.time_parts import critical_batch, decode_range, sides, usual_compute
from shardwise.search.serving.candidate import Candidate, Server
from shardwise.search.serving.evaluate import whole
from shardwise.search.serving.rank import Request, rank

ROWS = 6  # batches of a table, beside that of the plan
STEP = 4  # from one to the next, more where that would be too many


@dataclass(frozen=True, slots=True, kw_only=True)
class AtBatch:
    """One engine with another number of sequences.

    Args:
        here: the plan's own.
        step_s: a decoding pass.
        sides: seconds of the expected pass by what can bind it: weights (or flops), kv, network,
            software.
        bound: the largest of them.
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
    """The batch of one pass from which products are bound by FLOPs, at peak rates.

    Args:
        kv_context: tokens of a sequence from which reading caches takes longer than products at
            every batch; None without caches.
    """

    weights: str
    compute: str
    batch: float
    kv_context: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingWhatIf:
    """The plan on a machine with some numbers multiplied.

    Args:
        factors: name -> factor.
        same: the plan's own deployment there; `best` what a search with its batch finds.
        bound: of the plan's own.
    """

    factors: dict[str, float]
    same: Change
    bound: str
    best: Change | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingExplanation:
    """Why a serving plan is as it is.

    Args:
        bound: what takes longest of a pass: weights, kv, flops, network or software.
        margin: how often the next side goes into it.
        batches: of one engine, from the fewest sequences to as many as fit.
        kv_batch: the fewest sequences whose caches take longer than all products; None for none.
        critical: of the products, by dtype; the plan's own first.
        prefill: a prompt, and engines that read to one that generates.
        changes: what each would buy, the plan's own numbers first; of engines that generate alone
            where others read.
        path: the decisions in the order of the book.
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
        what_if: numbers of the machine to multiply: `{"hbm_bandwidth": 2}`.

    Raises:
        BadFile: a plan that cannot be read again. BadInput: a number that the machine lacks.
    """
    _, chosen = rebuild(plan)
    here = generating(chosen)
    changed = _what_if(here, what_if) if what_if else None
    own = _sides(here.server, here.batch)
    bound, other = sorted(own, key=lambda name: -own[name])[:2]
    decode = plan.estimate.decode
    return ServingExplanation(
        model=plan.model.name,
        hardware=plan.hardware.name,
        mesh=plan.strategy.mesh,
        precision=plan.strategy.precision,
        context=decode.context,
        batch=here.batch,
        bound=bound,
        margin=own[bound] / own[other],
        disaggregated=plan.strategy.disaggregated,
        batches=tuple(at_batch(here, n) for n in _batches(here)),
        kv_batch=decode.kv_batch,
        max_batch=decode.max_batch,
        critical=tuple(_critical(here.server)),
        prefill=plan.estimate.prefill,
        changes=changes(here),
        path=path(chosen, plan),
        why=plan.why,
        what_if=changed,
    )


def at_batch(here: Candidate, batch: int) -> AtBatch:
    """The same engines, each with `batch` sequences."""
    other = replace(here, batch=batch)
    spent = _sides(here.server, batch)
    hourly = here.server.rates.chip.usd_per_chip_hour
    return AtBatch(
        batch=batch,
        here=batch == here.batch,
        step_s=decode_range(here.server, batch),
        sides=spent,
        bound=max(spent, key=lambda name: spent[name]),
        tpot_s=other.tpot_s,
        tokens_per_s_per_chip=other.tokens_per_s / other.chips,
        usd_per_million_output_tokens=usd(other, hourly).output if hourly else None,
    )


def _sides(server: Server, batch: int) -> dict[str, float]:
    here = float(in_flight(server.engine, batch))
    return sides(server.decode(batch), flops=here > critical_batch(server.config, server))


def _batches(here: Candidate) -> list[int]:
    """From the fewest sequences, each several times that before, to as many as fit."""
    server = here.server
    unit, most = int(whole(server.config, server.layout, server.layout.sizes)), server.max_batch
    step = STEP
    while unit * step ** (ROWS - 1) < most:
        step *= 2
    found = {unit * step**k for k in range(ROWS) if unit * step**k < most}
    return sorted({*found, here.batch, most})


def _critical(server: Server) -> Iterator[Critical]:
    """Of the plan's own dtypes, then of others that the chip has."""
    job, chip = server.job, server.rates.chip
    narrow = [d for d in ("int8", "fp8", "int4", "fp4") if d in chip.peak_flops_per_s]
    wide = server.rates.wide
    pairs = [(job.weights, usual_compute(job.compute, chip)), (wide, wide), ("int8", wide)]
    pairs += [(d, d) for d in narrow] + [("int4", wide)]
    for weights, compute in dict.fromkeys(pairs):
        held = replace(job, weights=weights, compute=compute)
        other = replace(server, job=held, rates=replace(server.rates, job=held))
        yield Critical(
            weights=weights,
            compute=compute,
            batch=critical_batch(server.config, other),
            kv_context=kv_context(other),
        )


def _what_if(here: Candidate, factors: Mapping[str, float]) -> ServingWhatIf:
    """The same engines, and the search again, on the changed machine."""
    server = here.server
    system = scaled(server.system, factors)
    rates = replace(server.rates, chip=system.chip)
    mesh = server.layout.mesh
    links = {role: server.placement.describe(role) for role in mesh.sizes}
    there = replace(
        server,
        system=system,
        rates=rates,
        placement=engine_placement(system, mesh, links),
    )
    job = replace(here.job, batch=here.batch * server.layout.mesh.data)
    asked = Request(config=server.config, where=system, jobs=[job], peak=rates.ideal)
    same = replace(here, server=there)
    best = None
    with contextlib.suppress(ShardwiseError):
        best = rank(replace(asked, disaggregate=False), 0).candidates[0]
    spent = _sides(there, here.batch)
    bound = max(spent, key=lambda name: spent[name])
    return ServingWhatIf(
        factors=dict(factors),
        same=told(Difference(kind="none"), same),
        bound=bound,
        best=told(Difference(kind="searched"), best, other_engine=True) if best else None,
    )
