"""Engines for tests."""

from __future__ import annotations

from typing import Any

from shardwise.estimate.collective_cost import CollectiveCost
from shardwise.estimate.serving.chip_rates import ServeRates
from shardwise.estimate.serving.efficiency import AT_PEAK, ServingEfficiency
from shardwise.estimate.serving.engine import Engine
from shardwise.estimate.serving.overhead import IDEAL, EngineOverhead
from shardwise.hardware import parse_system
from shardwise.models import load
from shardwise.strategy.mesh import Mesh, place
from shardwise.strategy.serving_layout import ServeLayout
from shardwise.workload import Serve

REACHED = ServingEfficiency(
    matmuls={"bf16": 0.7}, stream=0.8, network=0.8, attention=0.5, kernel_s=4e-6, message_s=8e-6
)
BUSY = EngineOverhead(name="busy", pass_s=5e-4, sequence_s=1e-5)


def engine(
    model: str,
    hardware: str,
    mesh: dict[str, int],
    job: Serve | None = None,
    *,
    shares: ServingEfficiency = AT_PEAK,
    software: EngineOverhead = IDEAL,
    **form: Any,
) -> Engine:
    """An engine on the first of its placements; bf16 and 8,192 tokens where no job is given."""
    system, sizes = parse_system(hardware), Mesh(**mesh)
    return Engine(
        config=load(model),
        layout=ServeLayout(mesh=sizes, **form),
        costs=CollectiveCost(place(system, sizes.sizes)[:1]),
        rates=ServeRates(
            chip=system.chip, job=job or Serve(context=8192), efficiency=shares, overhead=software
        ),
    )
