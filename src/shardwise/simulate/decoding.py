"""The sequences that decode, advanced all at once.

Every one gains the same tokens in a pass, so a context is `base + grown`: `base` belongs to the
sequence and `grown` counts for all. A pass then changes a few numbers, however many sequences
there are, and so does a stretch of a thousand passes. A sequence takes a new block when its context
leaves a multiple of the block size: how many do follows from `base` modulo the block size alone.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import KeysView, Mapping
from fractions import Fraction

from shardwise.arrays import ceil_div
from shardwise.simulate.limits import Limits
from shardwise.simulate.request import Live


class Decoding:
    """Sequences that gain tokens in every pass.

    Args:
        limits: block size, tokens a pass, and whether blocks are taken as contexts grow.
    """

    def __init__(self, limits: Limits) -> None:
        gain = Fraction(limits.tokens_per_pass).limit_denominator(100)
        self._num, self._den = gain.numerator, gain.denominator
        # Tokens gained after i passes, and their sums: one period, after which fractions repeat.
        self._gained = [i * self._num // self._den for i in range(self._den + 1)]
        self._sums = list(itertools.accumulate(self._gained, initial=0))
        self._block = limits.block
        self._paged = limits.paged
        self._members: dict[Live, None] = {}
        self._classes = [0] * limits.block  # sequences by base modulo the block size
        self._ends: list[tuple[int, int, Live]] = []  # those of an older ticket are void
        self._tickets = 0
        self.passes = 0  # since the start of the run
        self.grown = 0  # tokens that each would have gained since then
        self.kv_tokens = 0  # sum of the contexts

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, live: Live) -> bool:
        return live in self._members

    @property
    def members(self) -> KeysView[Live]:
        """The sequences, oldest admission first."""
        return self._members.keys()

    def youngest(self) -> Live:
        """The sequence that was admitted last."""
        return next(reversed(self._members))

    def context(self, live: Live) -> int:
        """Tokens of a sequence in the KV cache."""
        return live.base + self.grown

    def join(self, live: Live, context: int) -> None:
        """A sequence with `context` tokens in the cache and one sampled decodes from now on."""
        live.base = context - self.grown
        self._members[live] = None
        self._classes[live.base % self._block] += 1
        self.kv_tokens += context
        self._expect(live)

    def _expect(self, live: Live) -> None:
        """Note when a sequence will have all of its tokens."""
        self._tickets += 1
        live.ticket = self._tickets
        ends = live.request.prompt + live.request.output - 1 - live.base
        heapq.heappush(self._ends, (ends, live.ticket, live))

    def leave(self, live: Live) -> None:
        """A sequence stops: its tokens and blocks so far are written into it."""
        context = live.base + self.grown
        del self._members[live]
        self._classes[live.base % self._block] -= 1
        self.kv_tokens -= context
        live.generated = min(context - live.request.prompt + 1, live.request.output)
        live.n_blocks = max(live.n_blocks, ceil_div(context, self._block))
        live.ticket = 0

    def gain(self, n: int) -> int:
        """Tokens that a sequence gains in the next `n` passes."""
        return (self.passes + n) * self._num // self._den - self.grown

    def blocks(self, n: int) -> int:
        """Blocks that the next `n` passes take."""
        if not self._paged or not self._members:
            return 0
        whole, rest = divmod(self.gain(n), self._block)
        crossing = sum(self._classes[-(self.grown + i) % self._block] for i in range(rest))
        return whole * len(self._members) + crossing

    def mean_read(self, n: int) -> float:
        """Mean over the next `n` passes of the tokens that one reads: contexts at its end."""
        if n == 1:
            return self.kv_tokens + len(self._members) * self.gain(1)
        first, last = self.passes + 1, self.passes + n
        grown = self._sum_grown(last) - self._sum_grown(first - 1) - n * self.grown
        return self.kv_tokens + len(self._members) * grown / n

    def _sum_grown(self, n: int) -> int:
        """Sum of the tokens gained since the start after 0, 1, ... n passes."""
        whole, rest = divmod(n + 1, self._den)
        periods = whole * self._sums[self._den] + self._num * self._den * (whole * (whole - 1) // 2)
        return periods + whole * self._num * rest + self._sums[rest]

    def passes_to_end(self) -> int:
        """Passes until the next sequence ends, that pass included."""
        ends = self._ends
        while ends[0][2].ticket != ends[0][1]:
            heapq.heappop(ends)
        return max(1, -(-ends[0][0] * self._den // self._num) - self.passes)

    def affordable(self, n: int, available: int) -> int:
        """The most passes up to `n` that take no more than `available` blocks."""
        most = len(self._members) * (self.gain(n) // self._block + 1)  # quicker than exactly
        if most <= available or self.blocks(n) <= available:
            return n
        low, high = 0, n
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.blocks(middle) <= available else (low, middle)
        return low

    def run(self, n: int, gained: Mapping[Live, int]) -> list[Live]:
        """Run `n` passes; returns the sequences that reached their end, which leave.

        Args:
            n: how many.
            gained: tokens of sequences that gained others than `gain` says.
        """
        usual = self.gain(n)
        self.passes += n
        self.grown += usual
        self.kv_tokens += usual * len(self._members)
        for live, tokens in gained.items():
            if tokens != usual:
                self._shift(live, tokens - usual)
        ended = []
        ends = self._ends
        while ends and ends[0][0] <= self.grown:
            _, ticket, live = heapq.heappop(ends)
            if live.ticket == ticket:
                self.leave(live)
                ended.append(live)
        return ended

    def _shift(self, live: Live, tokens: int) -> None:
        """Change the context of one sequence."""
        self._classes[live.base % self._block] -= 1
        live.base += tokens
        self._classes[live.base % self._block] += 1
        self.kv_tokens += tokens
        self._expect(live)
