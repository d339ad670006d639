"""The sequences that decode, advanced together.

Each gains the same number of tokens in a pass, so a context is `context_base + gained`: the first
belongs to the sequence, the second counts for all. A pass then changes a few numbers, however many
sequences there are, and so does a run of a thousand passes. A sequence needs a new block when its
context exceeds a multiple of the block size: how many do follows from `context_base` modulo the
block size alone.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import KeysView, Mapping
from fractions import Fraction

from shardwise.arrays import ceil_div
from shardwise.simulate.limits import Limits
from shardwise.simulate.request import SequenceState


class DecodeBatch:
    """Sequences that gain tokens in every pass.

    Args:
        limits: block size, tokens per pass, and whether blocks are allocated as contexts grow.
    """

    def __init__(self, limits: Limits) -> None:
        # Tokens per pass as a fraction. After `_period` passes the rounding repeats.
        gain = Fraction(limits.tokens_per_pass).limit_denominator(100)
        self._period_tokens = gain.numerator
        self._period = gain.denominator
        passes = range(self._period + 1)
        gained = [index * self._period_tokens // self._period for index in passes]
        self._gained_sums = list(itertools.accumulate(gained, initial=0))
        self._block_tokens = limits.block_tokens
        self._paged = limits.paged
        self._members: dict[SequenceState, None] = {}
        self._base_counts = [0] * limits.block_tokens  # sequences by base modulo the block size
        # Heap of (tokens gained when a sequence ends, ticket, sequence). An entry whose ticket is
        # not the sequence's current one is obsolete.
        self._end_heap: list[tuple[int, int, SequenceState]] = []
        self._n_tickets = 0
        self.n_passes = 0  # since the start of the run
        self.gained = 0  # tokens per sequence since the start of the run
        self.kv_tokens = 0  # sum of the contexts

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, sequence: SequenceState) -> bool:
        return sequence in self._members

    @property
    def members(self) -> KeysView[SequenceState]:
        """The sequences, in the order of their admission."""
        return self._members.keys()

    def youngest(self) -> SequenceState:
        """The sequence that was admitted last."""
        return next(reversed(self._members))

    def context(self, sequence: SequenceState) -> int:
        """Tokens of a sequence in the KV cache."""
        return sequence.context_base + self.gained

    def add(self, sequence: SequenceState, context: int) -> None:
        """Add a sequence with `context` tokens in the cache and one token sampled."""
        sequence.context_base = context - self.gained
        self._members[sequence] = None
        self._base_counts[sequence.context_base % self._block_tokens] += 1
        self.kv_tokens += context
        self._push_end(sequence)

    def _push_end(self, sequence: SequenceState) -> None:
        """Record when a sequence will have generated all of its tokens."""
        self._n_tickets += 1
        sequence.ticket = self._n_tickets
        end = sequence.request.prompt + sequence.request.output - 1 - sequence.context_base
        heapq.heappush(self._end_heap, (end, sequence.ticket, sequence))

    def remove(self, sequence: SequenceState) -> None:
        """Remove a sequence, and write the tokens and blocks that it has into it."""
        context = sequence.context_base + self.gained
        del self._members[sequence]
        self._base_counts[sequence.context_base % self._block_tokens] -= 1
        self.kv_tokens -= context
        request = sequence.request
        sequence.generated = min(context - request.prompt + 1, request.output)
        sequence.n_blocks = max(sequence.n_blocks, ceil_div(context, self._block_tokens))
        sequence.ticket = 0

    def gain(self, n_passes: int) -> int:
        """Tokens that a sequence gains in the next `n_passes`."""
        return (self.n_passes + n_passes) * self._period_tokens // self._period - self.gained

    def blocks_needed(self, n_passes: int) -> int:
        """New blocks that the next `n_passes` need."""
        if not self._paged or not self._members:
            return 0
        n_full, remainder = divmod(self.gain(n_passes), self._block_tokens)
        n_crossing = 0
        for tokens in range(remainder):
            n_crossing += self._base_counts[-(self.gained + tokens) % self._block_tokens]
        return n_full * len(self._members) + n_crossing

    def mean_kv_tokens(self, n_passes: int) -> float:
        """Mean over the next `n_passes` of the tokens read: the contexts at the end of a pass."""
        if n_passes == 1:
            return self.kv_tokens + len(self._members) * self.gain(1)
        gained_sum = self._gained_sum(self.n_passes + n_passes) - self._gained_sum(self.n_passes)
        gained_sum -= n_passes * self.gained
        return self.kv_tokens + len(self._members) * gained_sum / n_passes

    def _gained_sum(self, n_passes: int) -> int:
        """Sum of the tokens gained since the start after 0, 1, ... `n_passes` passes."""
        n_periods, remainder = divmod(n_passes + 1, self._period)
        total = n_periods * self._gained_sums[self._period]
        total += self._period_tokens * self._period * (n_periods * (n_periods - 1) // 2)
        return total + n_periods * self._period_tokens * remainder + self._gained_sums[remainder]

    def passes_to_end(self) -> int:
        """Passes until the next sequence ends, including its last pass."""
        heap = self._end_heap
        while heap[0][2].ticket != heap[0][1]:
            heapq.heappop(heap)
        last_pass: int = ceil_div(heap[0][0] * self._period, self._period_tokens)
        return max(1, last_pass - self.n_passes)

    def passes_that_fit(self, n_passes: int, n_available: int) -> int:
        """The most passes, up to `n_passes`, that need at most `n_available` blocks."""
        bound = len(self._members) * (self.gain(n_passes) // self._block_tokens + 1)
        if bound <= n_available or self.blocks_needed(n_passes) <= n_available:
            return n_passes
        low = 0
        high = n_passes
        while high - low > 1:
            middle = (low + high) // 2
            if self.blocks_needed(middle) <= n_available:
                low = middle
            else:
                high = middle
        return low

    def advance(self, n_passes: int, gained: Mapping[SequenceState, int]) -> list[SequenceState]:
        """Advance by `n_passes`; removes and returns the sequences that ended.

        Args:
            n_passes: passes that have run.
            gained: tokens of those sequences that gained another number than `gain` says.
        """
        usual = self.gain(n_passes)
        self.n_passes += n_passes
        self.gained += usual
        self.kv_tokens += usual * len(self._members)
        for sequence, tokens in gained.items():
            if tokens != usual:
                self._shift(sequence, tokens - usual)
        ended = []
        heap = self._end_heap
        while heap and heap[0][0] <= self.gained:
            _, ticket, sequence = heapq.heappop(heap)
            if sequence.ticket == ticket:
                self.remove(sequence)
                ended.append(sequence)
        return ended

    def _shift(self, sequence: SequenceState, tokens: int) -> None:
        """Change the context of one sequence."""
        self._base_counts[sequence.context_base % self._block_tokens] -= 1
        sequence.context_base += tokens
        self._base_counts[sequence.context_base % self._block_tokens] += 1
        self.kv_tokens += tokens
        self._push_end(sequence)
