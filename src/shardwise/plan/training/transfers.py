"""The collectives of a planned step: those of the sharding algebra, and what is sent beside it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from shardwise.arrays import minimum
from shardwise.estimate.training.chip_rates import Rates, is_end
from shardwise.estimate.training.extra_traffic import (
    Sent,
    between_stages,
    exchanges,
    remat_share,
    sends_again,
    sent_again,
    times_sent,
)
from shardwise.estimate.training.gradient_sync import buckets, vector_sum, weight_sums
from shardwise.estimate.training.microbatch import offloaded_bytes, regathers, transfer_bytes, waits
from shardwise.models import ModelConfig
from shardwise.ops import collective
from shardwise.ops.einsum import shards
from shardwise.ops.layers import RESIDUAL, passing
from shardwise.ops.program import Transfer
from shardwise.plan.schema.training import Operation
from shardwise.search.training.rank import Candidate
from shardwise.strategy.stages import Stages

MOSTLY = 0.5  # a role of which less is waited for counts as hidden


@dataclass(frozen=True, slots=True)
class Work:
    """What collectives are listed of: a model at these rates under a chosen strategy."""

    model: ModelConfig
    rates: Rates
    chosen: Candidate
    stage: Stages


def is_hidden(chosen: Candidate, role: str) -> bool:
    """Whether the strategy runs most of a role's traffic beside other work."""
    exposed, traffic = chosen.time.comm_s.get(role, 0.0), chosen.time.traffic_s.get(role, 0.0)
    return bool(exposed < MOSTLY * traffic)


def transfers(work: Work) -> Iterator[Operation]:
    """Every collective of a step on a chip of the busiest stage."""
    chosen, layout = work.chosen, work.chosen.layout
    for transfer in chosen.works.transfers:
        exchanged = transfer.role == "context" and layout.context_kind == "ulysses"
        if not (exchanged or waits(transfer, chosen.works.weights, layout)):
            yield from _derived(work, transfer)
    yield from _exchanges(work)
    yield from _offloaded(work)
    yield from _sums(work)


def _derived(work: Work, transfer: Transfer) -> Iterator[Operation]:
    """A collective of the algebra, and what remat does again of it."""
    chosen, layout, move = work.chosen, work.chosen.layout, transfer.move
    mesh = chosen.mesh.sizes
    share = 1.0 if is_end(transfer) else float(work.stage.share)
    times = transfer.count * share * layout.n_microbatches
    times *= float(times_sent(transfer, work.model, layout))
    n_bytes = float(transfer_bytes(transfer, chosen.works.weights, work.rates, mesh))
    sent = Sent(
        name=transfer.name,
        phase=transfer.phase,
        role=transfer.role,
        kind=move.kind,
        axes=move.axes,
        what=move,
        count=times,
        n_bytes=n_bytes,
    )
    phases = [(transfer.phase, 1.0)]
    if "norms" in layout.recomputed and regathers(transfer):
        phases.append(("remat", remat_share(work.model, layout)))
    ring = transfer.role == "context" and layout.context_kind == "ring"
    passed = layout.passes_on and _passed_on(work.model, transfer)
    for phase, again in phases:
        one = replace(sent, phase=phase, count=times * again)
        seconds = float(one.time_s(chosen.prices, work.rates, mesh))
        if ring:
            one = replace(_round(one, mesh["context"]), what=f"shards of {move.before.name}")
        elif passed:
            one = replace(_round(one, mesh["tensor"]), what=f"pieces of {move.before.name}")
        yield from _listed(work, one, seconds)


def _passed_on(model: ModelConfig, transfer: Transfer) -> bool:
    """Whether what a block reads or writes goes round the chips of `tensor` under its products."""
    if transfer.role != "tensor" or is_end(transfer):
        return False
    residual = transfer.move.before.base in RESIDUAL
    return residual and transfer.term.module in passing(model.groups[transfer.group].layer)


def _round(sent: Sent, n: int) -> Sent:
    """A gather or a scattered sum as a ring passes it on: n - 1 times what a chip has."""
    return replace(sent, kind="permute", count=sent.count * (n - 1), n_bytes=sent.n_bytes / n)


def _exchanges(work: Work) -> Iterator[Operation]:
    """Tokens, heads, states and activations of all microbatches of the stage."""
    model, rates, layout = work.model, work.rates, work.chosen.layout
    m, share = layout.n_microbatches, float(work.stage.share)
    layers = [*exchanges(model, layout, rates)]
    if sends_again(layout):
        layers += sent_again(model, layout, rates)
    sends = [replace(sent, count=sent.count * share * m) for sent in layers]
    for sent in between_stages(model, layout, work.stage, rates):
        sends.append(replace(sent, count=sent.count * m))
    for sent in sends:
        yield from _listed(work, sent, float(sent.time_s(work.chosen.prices, rates, layout.sizes)))


def _offloaded(work: Work) -> Iterator[Operation]:
    """Kept activations to host memory and back: over PCIe, on no axis of the mesh."""
    layout, stage = work.chosen.layout, work.stage
    seconds = float(work.chosen.roofline.traffic_s.get("host", 0.0))
    if seconds > 0:
        n_bytes = float(offloaded_bytes(work.model, work.chosen.works, layout, work.rates))
        part = minimum(1.0, layout.offload_layers / stage.held) if layout.offload_layers else 1.0
        sent = Sent(
            name="activations.offload",
            phase="forward",
            role="host",
            kind="permute",
            axes=(),
            what="kept activations",
            count=2 * layout.n_microbatches * stage.layers,
            n_bytes=n_bytes * part * stage.share / (2 * stage.layers),
        )
        yield _operation(work, sent, seconds)


def _sums(work: Work) -> Iterator[Operation]:
    """Gradients over copies of weights, and updated weights: each by its part of a bucket."""
    chosen, rates = work.chosen, work.rates
    sums = list(weight_sums(work.model, chosen.layout, work.stage, rates))
    vectors = vector_sum(work.model, chosen.layout, work.stage, rates)
    vectors_s = 0.0
    for bucket in buckets(sums):
        seconds = float(bucket.time_s(chosen.prices, rates, chosen.mesh.sizes))
        for sent in sums:
            if (sent.kind, sent.axes) == (bucket.kind, bucket.axes) and bucket.n_bytes:
                part_s = seconds * float(sent.n_bytes / bucket.n_bytes)
                if sent.part == "vectors":
                    vectors_s += part_s
                else:
                    yield from _listed(work, sent, part_s)
    if sums:
        yield from _listed(work, vectors, vectors_s)


def _listed(work: Work, sent: Sent, seconds: float) -> Iterator[Operation]:
    """Nothing over one chip, or where nothing is sent."""
    mesh = work.chosen.mesh.sizes
    if shards(sent.axes, mesh) > 1 and sent.count > 0 and sent.n_bytes > 0:
        kept = tuple(axis for axis in sent.axes if mesh[axis] > 1)
        yield _operation(work, replace(sent, axes=kept), seconds)


def _operation(work: Work, sent: Sent, seconds: float) -> Operation:
    mesh, joined = work.chosen.mesh.sizes, float(sent.count * sent.n_bytes)
    return Operation(
        name=sent.name,
        phase=sent.phase,
        expression=sent.text(sent.axes),
        count=max(1, round(float(sent.count) * sent.parts)),
        flops=0.0,
        hbm_bytes=0.0,
        collective=sent.kind,
        role=sent.role,
        network_bytes=float(collective.received_bytes(sent.kind, joined, shards(sent.axes, mesh))),
        time_s=seconds,
        math_s=0.0,
        hbm_s=0.0,
        hidden=is_hidden(work.chosen, sent.role),
        joined_bytes=joined,
        axes=sent.axes,
    )
