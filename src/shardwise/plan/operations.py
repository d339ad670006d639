"""The operations of a planned step: local matmuls and collectives, with bytes and seconds.

They are those of the busiest stage at peak rates: the roofline behind the plan, item by item.
"""

from __future__ import annotations

from collections.abc import Iterator

from shardwise import units
from shardwise.estimate.passes import part_of, regathers, transfer_bytes, waits
from shardwise.estimate.rates import IDEAL, Rates, hbm_bytes, is_end
from shardwise.estimate.sums import summed_parameters
from shardwise.hardware import Chip
from shardwise.models import ModelConfig
from shardwise.ops import collective
from shardwise.ops.einsum import shards
from shardwise.plan.value import Operation
from shardwise.search.train import Candidate
from shardwise.strategy.stages import Stages, stages
from shardwise.workload import Train

MOSTLY = 0.5  # a role of which less is waited for counts as hidden

# What the algebra of one microbatch does not see: role -> (name, phase, expression, collective).
BESIDE = {
    "expert": ("moe.exchange", "forward", "tokens to experts and back", "all_to_all"),
    "context": ("attn.exchange", "forward", "heads for tokens and back", "all_to_all"),
    "pipe": ("stage.send", "forward", "activations to the next stage", "permute"),
    "host": ("activations.offload", "forward", "kept activations to host memory, back", "permute"),
    "data": ("gradients.sum", "backward", "gradients over copies of weights", "all_reduce"),
}


def operations(
    model: ModelConfig, job: Train, chip: Chip, chosen: Candidate
) -> tuple[Operation, ...]:
    """Every work of the step; times are of all `count` occurrences together."""
    stage = stages(model.n_layers, chosen.layout)
    rates = Rates(chip=chip, job=job, kernels=IDEAL)
    return (
        *_matmuls(model, rates, chosen, stage),
        *_transfers(rates, chosen, stage),
        *_beside(chosen),
        _optimizer(model, rates, chosen, stage),
    )


def _matmuls(
    model: ModelConfig, rates: Rates, chosen: Candidate, stage: Stages
) -> Iterator[Operation]:
    mesh, weights = chosen.mesh.sizes, chosen.works.weights
    layout, bandwidth = chosen.layout, rates.hbm
    for matmul in chosen.works.matmuls:
        at_end = is_end(matmul.name)
        once = (1.0 if at_end else float(stage.share)) * layout.n_microbatches
        # Work that runs again does so in the layers that remat applies to.
        share = min(1.0, (layout.remat_layers or model.n_layers) / model.n_layers)
        phases = {matmul.phase: once * share if matmul.phase == "remat" else once}
        if matmul.phase == "forward" and not at_end and part_of(matmul) in layout.recomputed:
            phases["remat"] = once * share
        one = float(matmul.flops(mesh)), float(hbm_bytes(matmul, weights, rates.job, mesh))
        for phase, n in phases.items():
            flops, hbm = n * one[0], n * one[1]
            math_s, hbm_s = flops / rates.chip.peak(rates.dtype(matmul)), hbm / bandwidth
            yield Operation(
                name=matmul.name,
                phase=phase,
                expression=str(matmul.program.local),
                count=max(1, round(n * matmul.count)),
                flops=flops,
                hbm_bytes=hbm,
                collective=None,
                role=None,
                network_bytes=0.0,
                time_s=max(math_s, hbm_s),
                math_s=math_s,
                hbm_s=hbm_s,
                hidden=False,
            )


def is_hidden(chosen: Candidate, role: str) -> bool:
    """Whether the strategy runs most of a role's traffic beside other work."""
    exposed, traffic = chosen.time.comm_s.get(role, 0.0), chosen.time.traffic_s.get(role, 0.0)
    return bool(exposed < MOSTLY * traffic)


def _transfers(rates: Rates, chosen: Candidate, stage: Stages) -> Iterator[Operation]:
    mesh, works, layout = chosen.mesh.sizes, chosen.works, chosen.layout
    prices = chosen.prices
    for transfer in works.transfers:
        move = transfer.move
        exchanged = transfer.role == "context" and layout.context_kind == "ulysses"
        if exchanged or waits(transfer, works.weights, layout):
            continue
        share = 1.0 if is_end(transfer.name) else float(stage.share)
        times = transfer.count * share * layout.n_microbatches
        n_bytes = float(transfer_bytes(transfer, works.weights, rates, mesh))
        received = collective.received_bytes(move.kind, n_bytes, shards(move.axes, mesh))
        seconds = float(prices.of(move.kind, move.axes).time_s(n_bytes))
        phases = [transfer.phase]
        if "norms" in layout.recomputed and regathers(transfer):
            phases.append("remat")
        for phase in phases:
            names = (transfer.name, phase, str(move), move.kind)
            yield _collective(chosen, transfer.role, names, times, received, seconds)


def _collective(
    chosen: Candidate,
    role: str,
    names: tuple[str, str, str, str],
    times: float,
    received: float,
    seconds: float,
) -> Operation:
    name, phase, expression, kind = names
    return Operation(
        name=name,
        phase=phase,
        expression=expression,
        count=max(1, round(times)),
        flops=0.0,
        hbm_bytes=0.0,
        collective=kind,
        role=role,
        network_bytes=times * received,
        time_s=times * seconds,
        math_s=0.0,
        hbm_s=0.0,
        hidden=is_hidden(chosen, role),
    )


def _beside(chosen: Candidate) -> Iterator[Operation]:
    """Collectives that have formulas of their own, each role as one operation."""
    layout = chosen.layout
    there = {"expert", "pipe", "host", "data"}
    there |= {"context"} if layout.context_kind == "ulysses" else set()
    for role in [r for r in BESIDE if r in there]:
        seconds = float(chosen.roofline.traffic_s.get(role, 0.0))
        if seconds > 0:
            name, phase, expression, kind = BESIDE[role]
            if role == "data" and layout.zero in (1, 2):
                kind = "reduce_scatter"
            yield _collective(chosen, role, (name, phase, expression, kind), 1, 0.0, seconds)


def _optimizer(model: ModelConfig, rates: Rates, chosen: Candidate, stage: Stages) -> Operation:
    job, seconds = rates.job, float(chosen.roofline.update_s)
    held = sum(float(n) for _, n in summed_parameters(model, chosen.layout, stage))
    return Operation(
        name=f"optimizer.{job.optimizer}",
        phase="update",
        expression=f"{units.show_count(held)} parameters on the chip <- gradients",
        count=1,
        flops=0.0,
        hbm_bytes=seconds * rates.hbm,
        collective=None,
        role=None,
        network_bytes=0.0,
        time_s=seconds,
        math_s=0.0,
        hbm_s=seconds,
        hidden=False,
    )
