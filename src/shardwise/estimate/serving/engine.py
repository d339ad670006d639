"""One inference engine: a model in given dtypes, with one layout, on placed chips."""

from __future__ import annotations

from shardwise.arrays import Num
from shardwise.estimate.serving.load import Load, decode_load, prefill_load
from shardwise.estimate.serving.pass_time import PassTime, pass_time
from shardwise.estimate.serving.priced_engine import PricedEngine


class Engine(PricedEngine):
    """Inference engine with estimates of its pass times, for one layout or arrays of layouts."""

    def pass_time(self, load: Load) -> PassTime:
        """Time of one pass; in a pipeline, of the pass of one of the batches in flight."""
        return pass_time(self, load)

    def decode(self, batch: Num, context: Num, tokens_per_sequence: Num = 1) -> PassTime:
        """Time of one decoding step for `batch` sequences of `context` tokens.

        Args:
            tokens_per_sequence: tokens that the step computes for each sequence; more than 1 with
                speculative decoding.
        """
        return self.pass_time(decode_load(batch, context, tokens_per_sequence))

    def prefill(self, n: Num, length: Num, cached: Num = 0) -> PassTime:
        """Time to prefill `n` prompts of `length` tokens.

        The first `cached` tokens of each prompt are in the KV cache already.
        """
        return self.pass_time(prefill_load(n, length, cached))
