"""One engine: a model in given dtypes under one layout on placed chips."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from shardwise.arrays import Num
from shardwise.estimate.collective_cost import Prices
from shardwise.estimate.serving.chip_rates import ServeRates
from shardwise.estimate.serving.load import Load, decoding, prompts
from shardwise.estimate.serving.pass_time import PassTime, pass_time
from shardwise.models import ModelConfig
from shardwise.ops.forward import Forward, forward
from shardwise.strategy.serving_layout import ServeLayout, ServeLayouts, serve_table


@dataclass(frozen=True, kw_only=True)
class Engine:
    """What answers requests: numbers for one layout, arrays for many.

    Args:
        config: the model.
        layout: of one engine, or of many to compare.
        prices: of collectives on the layouts' placements.
        rates: of the chip, at the job's dtypes.
    """

    config: ModelConfig
    layout: ServeLayout | ServeLayouts
    prices: Prices
    rates: ServeRates

    @cached_property
    def works(self) -> Forward:
        """The pass as matmuls and collectives."""
        return forward(self.config, serve_table(self.layout))

    def pass_time(self, load: Load) -> PassTime:
        """Seconds of one pass; in a pipeline, of one of the batches in flight."""
        return pass_time(
            self.config, self.works, self.layout, self.layout.sizes, self.prices, self.rates, load
        )

    def decode(self, batch: Num, context: Num, drafted: Num = 1) -> PassTime:
        """One token, or `drafted` scored ones, for each of `batch` sequences."""
        return self.pass_time(decoding(batch, context, drafted))

    def prefill(self, n: Num, length: Num, cached: Num = 0) -> PassTime:
        """`n` whole prompts of `length` tokens, the first `cached` of them known."""
        return self.pass_time(prompts(n, length, cached))
