"""A layout of a training step with everything needed to price its operations."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from shardwise.arrays import Num, is_all
from shardwise.estimate import nccl
from shardwise.estimate.collective_cost import CollectiveCost, Kind
from shardwise.estimate.items import PricedItem
from shardwise.estimate.routing import SendOnce
from shardwise.estimate.training import measured_rates
from shardwise.estimate.training.chip_rates import Rates
from shardwise.estimate.training.local_work import LocalWork
from shardwise.models import ModelConfig
from shardwise.ops.einsum import shards
from shardwise.ops.program import Matmul, Transfer
from shardwise.strategy.layout import Layout, Layouts
from shardwise.strategy.stages import Stages, stages
from shardwise.workload import Train

WorkKey = tuple[int, str, bool]  # layer group and name of a matmul, whether its tiles count


@dataclass(frozen=True, kw_only=True)
class PricedLayout:
    """One layout, or several layouts of the same form as arrays, on chips at given rates.

    Args:
        layout: layout of a training step, or arrays of layouts.
        rates: rates of the chip in the job.
        costs: prices of collectives on the placements of the layouts.
        work: cache of the work of matmuls that have been priced.
    """

    config: ModelConfig
    layout: Layout | Layouts
    rates: Rates
    costs: CollectiveCost
    work: dict[WorkKey, LocalWork] = field(default_factory=dict, compare=False, repr=False)

    @property
    def job(self) -> Train:
        """The training job, with its dtypes and sequence length."""
        return self.rates.job

    @cached_property
    def mesh(self) -> dict[str, Num]:
        """Mesh role -> number of chips."""
        return {**self.layout.sizes}

    @cached_property
    def unsharded(self) -> frozenset[str]:
        """Mesh roles of a single chip in every layout, over which nothing is sent."""
        return frozenset(role for role, n in self.mesh.items() if is_all(n == 1))

    @cached_property
    def stage(self) -> Stages:
        """Numbers of layers and chunks on the fullest pipeline stage."""
        return stages(self.config.n_layers, self.layout)

    @property
    def remat_share(self) -> float:
        """Fraction of the layers to which remat applies."""
        if not self.layout.remat_layers:
            return 1.0
        return min(1.0, self.layout.remat_layers / self.config.n_layers)

    def head_passes(self, work: Matmul | Transfer | None) -> int:
        """Passes of a matmul or collective for each of a microbatch through the layers.

        The unembedding has one more for each layer of multi-token prediction.
        """
        if work is not None and work.term.module == "unembed":
            return 1 + self.job.mtp_layers
        return 1

    def collective(
        self,
        *,
        name: str,
        phase: str,
        role: str,
        kind: str,
        axes: tuple[str, ...],
        count: Num,
        joined_bytes: Num,
        description: str = "",
        work: Transfer | None = None,
        part: str = "",
        send_once: SendOnce | None = None,
    ) -> PricedItem:
        """Price a collective; the arguments are fields of `PricedItem`.

        Args:
            send_once: replaces `kind` for an AllToAll that sends each token once per destination.
        """
        return PricedItem(
            name=name,
            phase=phase,
            role=role,
            kind=kind,
            axes=axes,
            count=count,
            joined_bytes=joined_bytes,
            description=description,
            work=work,
            part=part,
            occurrence_s=self.collective_s(send_once or kind, axes, joined_bytes),
        )

    def collective_s(self, kind: Kind, axes: tuple[str, ...], joined_bytes: Num) -> Num:
        """Seconds of one occurrence of a collective; 0 if its axes have only one chip."""
        calibration = self.rates.calibration
        if self.rates.measured:
            name = kind if isinstance(kind, str) else "all_to_all"
            if measured_rates.has_collective(self.rates.chip, name):
                members = shards(axes, self.mesh)
                return measured_rates.collective_s(self.rates.chip, name, members, joined_bytes)
        price = self.costs.price(kind, axes)
        transfer_s = price.time_s(joined_bytes, calibration.links, calibration.network)
        if self.rates.fusion.ideal or self.rates.chip.kind != "gpu":
            return transfer_s
        return nccl.time_s(kind, price, transfer_s)
