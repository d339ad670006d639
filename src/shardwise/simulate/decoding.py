"""The sequences that decode in an engine; a pass over any number of them takes constant time.

Every sequence gains the same number of tokens in a pass. Its context, the number of its tokens in
the KV cache, is `context_base + gained`: `context_base` belongs to the sequence, `gained` is common
to all. A pass, or a series of a thousand passes, therefore updates only a few numbers. A
sequence needs a new block when its context exceeds a multiple of the block size, so the number of
new blocks follows from a histogram of `context_base` modulo the block size.
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
    """Sequences that decode, each gaining the same number of tokens in every pass.

    Args:
        limits: block size, tokens per pass, and whether blocks are allocated as contexts grow.
    """

    def __init__(self, limits: Limits) -> None:
        # A sequence gains `_period_tokens` tokens in `_period` passes, a whole number in each pass.
        gain = Fraction(limits.tokens_per_pass).limit_denominator(100)
        self._period_tokens = gain.numerator
        self._period = gain.denominator
        passes = range(self._period + 1)
        gained = [index * self._period_tokens // self._period for index in passes]
        self._gained_sums = list(itertools.accumulate(gained, initial=0))
        self._block_tokens = limits.block_tokens
        self._paged = limits.paged
        self._members: dict[SequenceState, None] = {}
        # Number of sequences by `context_base` modulo the block size.
        self._base_counts = [0] * limits.block_tokens
        # Heap of (value of `gained` at which a sequence ends, ticket, sequence). An entry whose
        # ticket differs from `sequence.ticket` is obsolete.
        self._end_heap: list[tuple[int, int, SequenceState]] = []
        self._n_tickets = 0
        self.n_passes = 0  # since the start of the run
        self.gained = 0  # tokens that a sequence would have gained since the start of the run
        self.kv_tokens = 0  # sum of the contexts of all sequences

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
        """Add a sequence that has `context` tokens in the KV cache and one more token sampled."""
        sequence.context_base = context - self.gained
        self._members[sequence] = None
        self._base_counts[sequence.context_base % self._block_tokens] += 1
        self.kv_tokens += context
        self._push_end(sequence)

    def _push_end(self, sequence: SequenceState) -> None:
        """Put the end of a sequence, when it will have generated all its tokens, into the heap."""
        self._n_tickets += 1
        sequence.ticket = self._n_tickets
        end = sequence.request.prompt + sequence.request.output - 1 - sequence.context_base
        heapq.heappush(self._end_heap, (end, sequence.ticket, sequence))

    def remove(self, sequence: SequenceState) -> None:
        """Remove a sequence, after storing its numbers of tokens and of blocks in it."""
        context = sequence.context_base + self.gained
        del self._members[sequence]
        self._base_counts[sequence.context_base % self._block_tokens] -= 1
        self.kv_tokens -= context
        request = sequence.request
        sequence.generated = min(context - request.prompt + 1, request.output)
        sequence.past = context
        sequence.n_blocks = max(sequence.n_blocks, ceil_div(context, self._block_tokens))
        sequence.ticket = 0

    def gain(self, n_passes: int) -> int:
        """Tokens that each sequence gains in the next `n_passes` passes."""
        return (self.n_passes + n_passes) * self._period_tokens // self._period - self.gained

    def blocks_needed(self, n_passes: int) -> int:
        """New blocks that all sequences together need for the next `n_passes` passes."""
        if not self._paged or not self._members:
            return 0
        n_full, remainder = divmod(self.gain(n_passes), self._block_tokens)
        n_crossing = 0
        for tokens in range(remainder):
            n_crossing += self._base_counts[-(self.gained + tokens) % self._block_tokens]
        return n_full * len(self._members) + n_crossing

    def mean_kv_tokens(self, n_passes: int) -> float:
        """Mean, over the next `n_passes` passes, of the tokens that a pass reads from the KV cache.

        A pass reads the contexts of all sequences as they are at its end.
        """
        if n_passes == 1:
            return self.kv_tokens + len(self._members) * self.gain(1)
        gained_sum = self._gained_sum(self.n_passes + n_passes) - self._gained_sum(self.n_passes)
        gained_sum -= n_passes * self.gained
        return self.kv_tokens + len(self._members) * gained_sum / n_passes

    def _gained_sum(self, n_passes: int) -> int:
        """Sum of `gained` after 0, 1, ..., `n_passes` passes since the start of the run."""
        n_periods, remainder = divmod(n_passes + 1, self._period)
        total = n_periods * self._gained_sums[self._period]
        total += self._period_tokens * self._period * (n_periods * (n_periods - 1) // 2)
        return total + n_periods * self._period_tokens * remainder + self._gained_sums[remainder]

    def passes_to_end(self) -> int:
        """Number of passes until the next sequence ends, its last pass included."""
        heap = self._end_heap
        while heap[0][2].ticket != heap[0][1]:
            heapq.heappop(heap)
        last_pass: int = ceil_div(heap[0][0] * self._period, self._period_tokens)
        return max(1, last_pass - self.n_passes)

    def passes_that_fit(self, n_passes: int, n_available: int) -> int:
        """The most passes, up to `n_passes`, that need at most `n_available` new blocks."""
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
        """Account for `n_passes` passes; remove and return the sequences that ended.

        Args:
            n_passes: number of passes that have run.
            gained: sequence -> tokens that it gained, for sequences that did not gain the usual
                number `gain(n_passes)`.
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
        """Change the context of one sequence by `tokens`."""
        self._base_counts[sequence.context_base % self._block_tokens] -= 1
        sequence.context_base += tokens
        self._base_counts[sequence.context_base % self._block_tokens] += 1
        self.kv_tokens += tokens
        self._push_end(sequence)
