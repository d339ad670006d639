"""One engine: a model in given dtypes under one layout on placed chips."""

from __future__ import annotations

from shardwise.arrays import Num
from shardwise.estimate.serving.load import Load, decoding, prompts
from shardwise.estimate.serving.pass_time import PassTime, pass_time
from shardwise.estimate.serving.priced_engine import PricedEngine


class Engine(PricedEngine):
    """What answers requests: numbers for one layout, arrays for many."""

    def pass_time(self, load: Load) -> PassTime:
        """Seconds of one pass; in a pipeline, of one of the batches in flight."""
        return pass_time(self, load)

    def decode(self, batch: Num, context: Num, drafted: Num = 1) -> PassTime:
        """One token, or `drafted` scored ones, for each of `batch` sequences."""
        return self.pass_time(decoding(batch, context, drafted))

    def prefill(self, n: Num, length: Num, cached: Num = 0) -> PassTime:
        """`n` whole prompts of `length` tokens, the first `cached` of them known."""
        return self.pass_time(prompts(n, length, cached))
