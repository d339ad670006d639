"""The operations of a planned step: local matmuls and collectives, with bytes and seconds."""

from __future__ import annotations

from collections.abc import Iterator

from shardwise.estimate.prices import Prices
from shardwise.estimate.training import (
    HIDDEN_ROLES,
    matmul_hbm_bytes,
    optimizer_hbm_bytes,
    transfer_bytes,
)
from shardwise.hardware import Chip
from shardwise.models import ModelConfig
from shardwise.ops import collective
from shardwise.ops.einsum import shards
from shardwise.plan.value import Operation
from shardwise.search.train import Candidate
from shardwise.strategy.rules import TRAIN, only
from shardwise.workload import Train


def operations(
    model: ModelConfig, job: Train, chip: Chip, chosen: Candidate
) -> tuple[Operation, ...]:
    """Every work of the step; times are of all `count` occurrences together."""
    return (
        *_matmuls(job, chip, chosen),
        *_transfers(job, chosen),
        _optimizer(model, job, chip, chosen),
    )


def _matmuls(job: Train, chip: Chip, chosen: Candidate) -> Iterator[Operation]:
    mesh, weights = chosen.mesh.sizes, chosen.step.weights
    peak, bandwidth = chip.peak(job.compute), chip.need("hbm_bytes_per_s")
    n = chosen.n_microbatches
    for matmul in chosen.step.matmuls:
        flops = n * float(matmul.flops(mesh))
        hbm = n * float(matmul_hbm_bytes(matmul, weights, job, mesh))
        yield Operation(
            name=matmul.name,
            phase=matmul.phase,
            expression=str(matmul.program.local),
            count=n * matmul.count,
            flops=flops,
            hbm_bytes=hbm,
            collective=None,
            role=None,
            network_bytes=0.0,
            time_s=max(flops / peak, hbm / bandwidth),
            hidden=False,
        )


def _transfers(job: Train, chosen: Candidate) -> Iterator[Operation]:
    mesh, weights = chosen.mesh.sizes, chosen.step.weights
    prices = Prices([chosen.placement])
    for transfer in chosen.step.transfers:
        move = transfer.move
        n_bytes = float(transfer_bytes(transfer, weights, job, mesh))
        times = int(transfer.times(chosen.n_microbatches))
        received = collective.received_bytes(move.kind, n_bytes, shards(move.axes, mesh))
        yield Operation(
            name=transfer.name,
            phase=transfer.phase,
            expression=str(move),
            count=times,
            flops=0.0,
            hbm_bytes=0.0,
            collective=move.kind,
            role=transfer.role,
            network_bytes=times * received,
            time_s=times * float(prices.of(move.kind, move.axes).time_s(n_bytes)),
            hidden=transfer.role in HIDDEN_ROLES,
        )


def _optimizer(model: ModelConfig, job: Train, chip: Chip, chosen: Candidate) -> Operation:
    rules = only(TRAIN, chosen.mesh.sizes)
    hbm = float(optimizer_hbm_bytes(model, job, rules, chosen.mesh.sizes))
    return Operation(
        name=f"optimizer.{job.optimizer}",
        phase="update",
        expression="weights, moments <- gradients",
        count=1,
        flops=0.0,
        hbm_bytes=hbm,
        collective=None,
        role=None,
        network_bytes=0.0,
        time_s=hbm / chip.need("hbm_bytes_per_s"),
        hidden=False,
    )
