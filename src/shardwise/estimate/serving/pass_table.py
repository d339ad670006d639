"""Seconds of any pass of one engine, looked up: what a simulation asks a million times.

`passes.pass_time` is a sum of parts that each depend on one number: products, element-wise steps
and collectives on the rows of the pass, reading of caches on the mean context, attention of prompts
on their mean reach. Each is evaluated once on a grid, and read off between its points.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass

from shardwise.arrays import Num
from shardwise.estimate.serving.engine import Engine
from shardwise.estimate.serving.extra_traffic import batch_shards
from shardwise.estimate.serving.load import Load

# (up to, step) of the grids: whole tiles of 128 rows are points, as the rate changes there.
GRID = ((64, 1), (1024, 16), (16384, 128))
COARSE = 1.1  # step beyond


@dataclass(frozen=True, slots=True)
class Line:
    """A function between points of a grid, linear in between and beyond."""

    at: tuple[float, ...]
    values: tuple[float, ...]

    def __call__(self, x: float) -> float:
        i = min(max(bisect_right(self.at, x) - 1, 0), len(self.at) - 2)
        low, left = self.at[i], self.values[i]
        return left + (x - low) * (self.values[i + 1] - left) / (self.at[i + 1] - low)


class PassTable:
    """Seconds of passes of one engine.

    Args:
        engine: with one layout.
        most_rows: rows of the largest pass that will be asked.
        longest: tokens of the longest context.
        scored: tokens that a sequence puts into a decoding pass: 1, and those that were drafted.
    """

    def __init__(
        self, engine: Engine, most_rows: int = 16384, longest: int = 131072, scored: int = 1
    ) -> None:
        import numpy as np

        self.stages = engine.layout.sizes["pipe"]
        self.scored = scored
        rows = np.array(_grid(most_rows))
        contexts = np.array(_grid(longest))
        plain = engine.pass_time(Load(decode=rows, sampled=0 * rows))
        heads = engine.pass_time(Load(decode=rows, sampled=rows)).head
        # A gap for each kernel and the host's time for each sequence are counted where they occur.
        each = plain.step_s - plain.host
        read = engine.pass_time(Load(decode=1.0, kv_tokens=contexts, drafted=scored)).caches
        pairs = engine.pass_time(Load(prefill=1.0, pairs=contexts / 2)).prompts
        both = engine.pass_time(Load(decode=1.0, prefill=1.0, pairs=1.0)).kernels
        alone = engine.pass_time(Load(decode=2.0)).kernels
        self.rows = _line(rows, each)
        self.head = _line(rows, heads)
        self.read = _line(contexts, read)
        self.pairs = _line(contexts, pairs)
        self.mixed_s = float(both - alone)
        self.host_s = engine.rates.engine.pass_s
        ranks = float(batch_shards(engine.layout, engine.layout.sizes))
        self.sequence_s = engine.rates.engine.sequence_s / ranks

    def pass_s(self, decode: float, kv_tokens: float, prefill: float, pairs: float) -> float:
        """Seconds of a pass; of a pipeline with a batch on each stage, of all of them.

        Args:
            decode: sequences that generate a token.
            kv_tokens: sum of their contexts.
            prefill: tokens of prompts.
            pairs: query-key pairs of these.
        """
        here = decode / self.stages
        rows = here * self.scored
        seconds = self.rows(max(1.0, rows + prefill / self.stages)) + self.host_s
        if decode:
            seconds += here * self.read(kv_tokens / decode) + self.head(max(1.0, rows))
            seconds += self.sequence_s * here
        if prefill:
            seconds += prefill / self.stages * self.pairs(2 * pairs / prefill)
            seconds += self.mixed_s if decode else self.head(1.0)
        return seconds


def _grid(most: int) -> list[float]:
    points = [1.0]
    for end, step in GRID:
        while points[-1] < min(end, most):
            points.append(float(step * (points[-1] // step + 1)))
    while points[-1] < most:
        points.append(float(math.ceil(points[-1] * COARSE)))
    return points if len(points) > 1 else [1.0, 2.0]


def _line(at: Num, values: Num) -> Line:
    return Line(tuple(at.tolist()), tuple((values + 0.0 * at).tolist()))
