"""The operations of a planned step: local matmuls and collectives, with bytes and seconds.

They are those of the busiest stage at peak rates: the roofline behind the plan, item by item.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from shardwise import units
from shardwise.estimate.training.chip_rates import IDEAL, Kernels, Rates, hbm_bytes, is_end
from shardwise.estimate.training.gradient_sync import summed_parameters
from shardwise.estimate.training.microbatch import part_of
from shardwise.formulas.roofline import bounds
from shardwise.hardware import Chip
from shardwise.models import ModelConfig
from shardwise.plan.schema.training import Operation
from shardwise.plan.training.transfers import Work, transfers
from shardwise.search.training.rank import Candidate
from shardwise.strategy.stages import Stages, stages
from shardwise.workload import Train


def operations(
    model: ModelConfig, job: Train, chip: Chip, chosen: Candidate
) -> tuple[Operation, ...]:
    """Every work of the step; times are of all `count` occurrences together."""
    stage = stages(model.n_layers, chosen.layout)
    rates = Rates(chip=chip, job=job, kernels=IDEAL)
    return (
        *_matmuls(model, rates, chosen, stage),
        *transfers(Work(model, rates, chosen, stage)),
        _optimizer(model, rates, chosen, stage),
    )


def _matmuls(
    model: ModelConfig, rates: Rates, chosen: Candidate, stage: Stages
) -> Iterator[Operation]:
    mesh, weights = chosen.mesh.sizes, chosen.works.weights
    layout, bandwidth = chosen.layout, rates.hbm
    kernels = replace(rates, kernels=Kernels())
    for matmul in chosen.works.matmuls:
        at_end = is_end(matmul)
        once = (1.0 if at_end else float(stage.share)) * layout.n_microbatches
        # Work that runs again does so in the layers that remat applies to.
        share = min(1.0, (layout.remat_layers or model.n_layers) / model.n_layers)
        phases = {matmul.phase: once * share if matmul.phase == "remat" else once}
        if matmul.phase == "forward" and not at_end and part_of(matmul) in layout.recomputed:
            phases["remat"] = once * share
        one = float(matmul.flops(mesh)), float(hbm_bytes(matmul, weights, rates.job, mesh))
        computed = float(kernels.computed_flops(matmul, mesh))
        for phase, n in phases.items():
            flops, hbm = n * one[0], n * one[1]
            time = bounds(flops, rates.chip.peak(rates.dtype(matmul)), hbm, bandwidth)
            yield Operation(
                name=matmul.name,
                phase=phase,
                expression=str(matmul.program.local),
                count=max(1, round(n * matmul.count * matmul.pieces)),
                flops=flops,
                hbm_bytes=hbm,
                collective=None,
                role=None,
                network_bytes=0.0,
                time_s=time.lower,
                math_s=time.math_s,
                hbm_s=time.comms_s,
                hidden=False,
                computed_flops=n * computed,
            )


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
