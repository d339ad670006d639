"""Pass times of this package's engine, whose passes are programs of few shapes, for simulations."""

from __future__ import annotations

import math
from collections.abc import Sequence

from shardwise.estimate.serving.compiled_shapes import CompiledShapes
from shardwise.estimate.serving.engine import Engine
from shardwise.estimate.serving.load import Load
from shardwise.estimate.serving.measured_rates import padded_keys
from shardwise.estimate.serving.pass_time import program_time


class ProgramTimes:
    """Seconds of a pass: those of its programs, which compute their padding too.

    Args:
        engine: an engine on a machine that was measured.
        sequences: the most sequences in a pass.
    """

    def __init__(self, engine: Engine, sequences: int) -> None:
        rates = engine.rates
        context = rates.job.context
        self.engine = engine
        self.shapes = CompiledShapes(
            max_sequences=sequences,
            max_tokens=min(max(rates.overhead.max_tokens, sequences), max(context, sequences)),
        )
        self._seconds: dict[tuple[int, int, float], float] = {}

    def pass_s(
        self,
        n_decoding: float,
        kv_tokens: float,
        prefill_tokens: float,
        query_key_pairs: float,
        chunks: Sequence[tuple[int, int]] = (),
    ) -> float:
        """Seconds of one pass: see `PassTimes` of the simulation."""
        overhead = self.engine.rates.overhead
        seconds = overhead.pass_s
        if n_decoding:
            sequences = math.ceil(n_decoding)
            seconds += overhead.sequence_s * sequences
            keys = padded_keys(kv_tokens / n_decoding)
            for n_rows, length in self.shapes.programs([1] * sequences):
                seconds += self._program_s(n_rows, length, keys)
        if prefill_tokens and not chunks:
            past = query_key_pairs / prefill_tokens - (prefill_tokens + 1) / 2
            chunks = [(math.ceil(prefill_tokens), max(0, round(past)))]
        if chunks:
            keys = padded_keys(max(tokens + past for tokens, past in chunks))
            seconds += overhead.sequence_s * len(chunks)
            for n_rows, length in self.shapes.programs([tokens for tokens, _ in chunks]):
                seconds += self._program_s(n_rows, length, keys)
        return seconds

    def traverse_s(self, tokens: int, past: int) -> float:
        """Seconds of a chunk in all stages, of which measured machines have one."""
        return 0.0

    def _program_s(self, n_rows: int, length: int, keys: float) -> float:
        """Seconds of a program of `n_rows` rows of `length` new tokens, over `keys` keys each."""
        shape = (n_rows, length, keys)
        if shape not in self._seconds:
            tokens = n_rows * length
            load = Load(n_decoding=n_rows, kv_tokens=n_rows * keys)
            if length > 1:
                pairs = tokens * keys
                load = Load(prefill_tokens=tokens, query_key_pairs=pairs, n_sampled=n_rows)
            self._seconds[shape] = float(program_time(self.engine, load).step_s)
        return self._seconds[shape]
