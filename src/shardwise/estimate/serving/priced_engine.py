"""An inference engine with everything needed to price its operations."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from shardwise.arrays import Num, where
from shardwise.estimate.collective_cost import CollectiveCost
from shardwise.estimate.items import PricedItem
from shardwise.estimate.nccl import protocol_s
from shardwise.estimate.serving.chip_rates import ServeRates
from shardwise.models import ModelConfig
from shardwise.ops.einsum import shards
from shardwise.ops.forward import Forward, forward
from shardwise.ops.program import Transfer
from shardwise.strategy.serving_layout import ServeLayout, ServeLayouts, serve_table


@dataclass(frozen=True, kw_only=True)
class PricedEngine:
    """One engine, or several engines of the same form as arrays, on chips at given rates.

    Args:
        layout: layout of one engine, or arrays of layouts to compare.
        costs: prices of collectives on the placements of the layouts.
        rates: rates of the chip at the job's dtypes.
    """

    config: ModelConfig
    layout: ServeLayout | ServeLayouts
    costs: CollectiveCost
    rates: ServeRates

    @cached_property
    def program(self) -> Forward:
        """Matmuls and collectives of one forward pass."""
        return forward(self.config, serve_table(self.layout))

    @cached_property
    def mesh(self) -> dict[str, Num]:
        """Mesh role -> number of chips."""
        return {**self.layout.sizes}

    def collective(
        self,
        *,
        name: str,
        role: str,
        kind: str,
        axes: tuple[str, ...],
        count: Num,
        joined_bytes: Num,
        description: str = "",
        work: Transfer | None = None,
    ) -> PricedItem:
        """Price a collective of the forward pass; the arguments are fields of `PricedItem`."""
        return PricedItem(
            name=name,
            phase="forward",
            role=role,
            kind=kind,
            axes=axes,
            count=count,
            joined_bytes=joined_bytes,
            description=description,
            work=work,
            occurrence_s=self._collective_s(kind, axes, joined_bytes),
        )

    def _collective_s(self, kind: str, axes: tuple[str, ...], joined_bytes: Num) -> Num:
        """Seconds of one occurrence of a collective; 0 if its axes have only one chip."""
        efficiency = self.rates.efficiency
        overhead = self.rates.overhead
        price = self.costs.price(kind, axes)
        transfer_s = price.time_s(joined_bytes / efficiency.network)
        if not self.rates.ideal and self.rates.chip.kind == "gpu":
            transfer_s = transfer_s + protocol_s(price, transfer_s)
        n_chips = shards(axes, self.mesh)
        start_s = efficiency.message_s + overhead.message_s + (n_chips - 1) * overhead.hop_s
        return transfer_s + where(n_chips > 1, start_s, 0.0)
