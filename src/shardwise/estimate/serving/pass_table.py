"""Lookup table of an engine's pass times, for simulations that need millions of them.

`pass_time` is a sum of terms that depend on one number each: matmuls, element-wise steps and
collectives on the tokens of the pass, decode attention on the mean context length, prefill
attention on the mean prompt length. Each term is evaluated once on a grid and then interpolated.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from shardwise.arrays import Num
from shardwise.estimate.serving.engine import Engine
from shardwise.estimate.serving.extra_traffic import batch_shards
from shardwise.estimate.serving.load import Load
from shardwise.estimate.serving.pass_time import collectives, layer_matmuls
from shardwise.ops.program import Matmul

# (end, step) of the grid's segments. Multiples of 128 rows, the side of a tile, are grid points
# because the time jumps there.
GRID = ((64, 1), (1024, 16), (16384, 128))
GROWTH = 1.1  # ratio of neighboring points beyond the last segment


@dataclass(frozen=True, slots=True)
class Interpolation:
    """A piecewise linear function: `values` at `points`, extrapolated beyond both ends.

    A simulation asks for a million values: the slopes are kept.
    """

    points: tuple[float, ...]
    values: tuple[float, ...]
    slopes: tuple[float, ...] = field(init=False)

    def __post_init__(self) -> None:
        pairs = zip(itertools.pairwise(self.points), itertools.pairwise(self.values), strict=True)
        slopes = ((after - before) / (end - start) for (start, end), (before, after) in pairs)
        object.__setattr__(self, "slopes", tuple(slopes))

    def __call__(self, x: float) -> float:
        """Value of the function at `x`."""
        i = bisect_right(self.points, x, 1, len(self.points) - 1) - 1
        return self.values[i] + (x - self.points[i]) * self.slopes[i]


class PassTable:
    """Lookup table of one engine's pass times.

    Args:
        engine: an engine with one layout, not arrays of layouts.
        max_rows: tokens of the largest pass.
        max_context: tokens of the longest context.
        tokens_per_sequence: tokens that a decoding pass computes for each sequence: 1 + the
            drafted tokens of speculative decoding.
    """

    def __init__(
        self,
        engine: Engine,
        max_rows: int = 16384,
        max_context: int = 131072,
        tokens_per_sequence: int = 1,
    ) -> None:
        import numpy as np

        self.stages = engine.layout.sizes["pipe"]
        self.tokens_per_sequence = tokens_per_sequence
        rows = np.array(_grid(max_rows))
        contexts = np.array(_grid(max_context))
        load = Load(n_decoding=rows, n_sampled=0 * rows)
        # Scans of SSM states are of sequences, not of rows: `context_s` has them.
        layers = replace(engine.pass_time(load), decode_attention=0.0)
        self.ranks = int(batch_shards(engine.layout, engine.layout.sizes))
        # The host's time is subtracted here; `pass_s` adds it for the sequences of a pass.
        seconds = layers.step_s - layers.host
        shared = 0.0 * rows
        if self.ranks > 1 and not layers.overlaps:
            shared = shared + shared_s(engine, load)
        self.rows_s = _interpolation(rows, seconds - shared)
        self.shared_s = _interpolation(rows, shared)
        head = engine.pass_time(Load(n_decoding=rows, n_sampled=rows)).head
        self.head_s = _interpolation(rows, head)
        decode = Load(n_decoding=1.0, kv_tokens=contexts, tokens_per_sequence=tokens_per_sequence)
        self.context_s = _interpolation(contexts, engine.pass_time(decode).decode_attention)
        prefill = Load(prefill_tokens=1.0, query_key_pairs=contexts / 2)
        self.prompt_s = _interpolation(contexts, engine.pass_time(prefill).prefill_attention)
        mixed = Load(n_decoding=1.0, prefill_tokens=1.0, query_key_pairs=1.0)
        mixed_kernels = engine.pass_time(mixed).kernels
        self.mixed_s = float(mixed_kernels - engine.pass_time(Load(n_decoding=2.0)).kernels)
        self.host_s = engine.rates.overhead.pass_s
        self.sequence_s = engine.rates.overhead.sequence_s / self.ranks

    def pass_s(
        self,
        n_decoding: float,
        kv_tokens: float,
        prefill_tokens: float,
        query_key_pairs: float,
        chunks: Sequence[tuple[int, int]] = (),
    ) -> float:
        """Seconds of one pass; in a pipeline, of the batches on all stages together.

        Args:
            n_decoding: number of decoding sequences.
            kv_tokens: sum of the context lengths of the decoding sequences.
            prefill_tokens: number of prompt tokens that the pass computes.
            query_key_pairs: causal query-key pairs of the prompts, as in `Load`.
            chunks: tokens of each prompt, and those before them; without these, prompts are taken
                to be spread evenly over the ranks of data-parallel attention.
        """
        sequences = n_decoding / self.stages
        rows = sequences * self.tokens_per_sequence
        uneven = self._unevenness(prefill_tokens, chunks)
        prompt_rows = prefill_tokens / self.stages
        seconds = self.rows_s(max(1.0, rows + uneven * prompt_rows)) + self.host_s
        if self.ranks > 1:
            seconds += self.shared_s(max(1.0, rows + prompt_rows))
        if n_decoding:
            attention_s = sequences * self.context_s(kv_tokens / n_decoding)
            seconds += attention_s + self.head_s(max(1.0, rows))
            seconds += self.sequence_s * sequences
        if prefill_tokens:
            prompt_s = self.prompt_s(2 * query_key_pairs / prefill_tokens)
            seconds += uneven * prompt_rows * prompt_s
            seconds += self.mixed_s if n_decoding else self.head_s(1.0)
        return seconds

    def traverse_s(self, tokens: int, past: int) -> float:
        """Seconds of a chunk of a prompt in all stages of a pipeline, in one batch; 0 without one.

        `pass_s` spreads the tokens of a pass over the batches in flight. Those of one chunk stay
        together: a single prompt takes the time of all stages, one after another.

        Args:
            tokens: of the chunk.
            past: tokens of the prompt in the KV cache before it.
        """
        if self.stages == 1:
            return 0.0
        prompt_s = self.prompt_s(2 * past + tokens + 1)
        return self.rows_s(max(1.0, tokens)) + tokens * prompt_s + self.head_s(1.0) + self.host_s

    def _unevenness(self, prefill_tokens: float, chunks: Sequence[tuple[int, int]]) -> float:
        """Prompt tokens of the fullest rank of data-parallel attention, over the mean of all.

        A prompt is computed by one rank, for whose end the others wait.
        """
        if self.ranks == 1 or not chunks:
            return 1.0
        longest = max(tokens for tokens, _ in chunks)
        per_rank = -(-len(chunks) // self.ranks) * prefill_tokens / len(chunks)
        return max(longest, per_rank) * self.ranks / prefill_tokens


def shared_s(engine: Engine, load: Load) -> Num:
    """Seconds of what all ranks of data-parallel attention compute and exchange together.

    These are routed experts and the exchange of their tokens. All else a rank does for the tokens
    of its own sequences.
    """
    seconds: Num = sum(
        item.seconds
        for item in layer_matmuls(engine, load)
        if isinstance(item.work, Matmul) and item.work.program.einsum.chosen
    )
    return seconds + sum(i.seconds for i in collectives(engine, load) if i.role == "expert")


def _grid(end: int) -> list[float]:
    """Grid points from 1 to `end` or just beyond; at least two points."""
    points = [1.0]
    for segment_end, step in GRID:
        while points[-1] < min(segment_end, end):
            points.append(float(step * (points[-1] // step + 1)))
    while points[-1] < end:
        points.append(float(math.ceil(points[-1] * GROWTH)))
    return points if len(points) > 1 else [1.0, 2.0]


def _interpolation(points: Num, values: Num) -> Interpolation:
    return Interpolation(tuple(points.tolist()), tuple((values + 0.0 * points).tolist()))
