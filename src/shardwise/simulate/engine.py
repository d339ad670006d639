"""One simulated engine: a real scheduler, with a clock instead of a device."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from shardwise.simulate.limits import Limits
from shardwise.simulate.passes import Pass
from shardwise.simulate.request import Request, SequenceState
from shardwise.simulate.scheduler import Scheduler
from shardwise.simulate.times import PassTimes

ALL_TIME = (0.0, math.inf)


@dataclass(slots=True)
class Tally:
    """Counters of an engine, summed over its passes; from `decode_passes` on, but for the peak and
    preemptions, over those in the counted time.

    An integral over time is the sum of a count times the seconds for which it holds; divided by
    the duration it is a mean. All are exact, except that `used_s` takes the mean of the first and
    the last pass for a series of identical passes.
    """

    passes: int = 0
    events: int = 0  # passes, where a series of identical passes counts as one
    decode_passes: float = 0  # passes in which at least one sequence decodes
    decoded: float = 0  # number of sequences that decode, summed over the decode passes
    busy_s: float = 0.0  # time in which passes run
    running_s: float = 0.0  # integral of the number of sequences that have blocks
    system_s: float = 0.0  # integral of the number of requests that wait or run
    used_s: float = 0.0  # integral of the number of blocks in use
    peak_used: int = 0  # most blocks in use
    preemptions: int = 0


class SimulatedEngine:
    """An engine whose passes take the seconds that `times` returns.

    Args:
        times: seconds of a pass.
        limits: limits of the scheduler.
        fast_forward: whether to simulate a series of identical passes as one event. Each of them
            then takes the time of their mean pass; the sum is exact if `times` is affine in
            `kv_tokens`.
        counted_s: start and end of the time in which the tally counts.
    """

    def __init__(
        self,
        times: PassTimes,
        limits: Limits,
        fast_forward: bool = True,
        counted_s: tuple[float, float] = ALL_TIME,
    ) -> None:
        self.scheduler = Scheduler(limits)
        self.clock = 0.0
        self.tally = Tally()
        self._times = times
        self._fast_forward = fast_forward
        self.counted_s = counted_s
        self._ahead = limits.passes_ahead > 0
        self._chosen_s = math.inf  # when the next pass is chosen, if passes are chosen ahead
        self._arrived: deque[tuple[Request, bool]] = deque()  # too late for the next pass
        self._in_system = 0
        self._n_just_ended = 0  # requests that ended with the last pass, at `clock`

    @property
    def has_work(self) -> bool:
        """Whether requests wait or run."""
        return self._in_system > 0

    def outstanding(self, at_s: float) -> int:
        """Number of requests that wait or run at `at_s`, a time during the last pass or later."""
        if at_s < self.clock:
            return self._in_system + self._n_just_ended
        return self._in_system

    def submit(self, request: Request, kv_ready: bool = False) -> None:
        """Add a request at its arrival time.

        Raises:
            BadInput: the request is invalid or too long for the KV cache.
        """
        self._arrived.append((request, kv_ready))
        if self._in_system == 0:
            self._chosen_s = math.inf
        if not self._ahead or not self.scheduler.has_work:
            self._admit_arrived(math.inf)
        if self._in_system == 0 and self.clock < request.arrival_s:
            self.clock = request.arrival_s
        self._in_system += 1
        late_s = self.clock - request.arrival_s  # > 0 if it arrived during a pass
        self.tally.system_s += self._counted(request.arrival_s, late_s)

    def step(self, until_s: float = math.inf) -> list[SequenceState]:
        """Run the next pass, or a series of identical passes; return the sequences that ended.

        Args:
            until_s: time of the next possible arrival. A series ends with the pass that runs at
                that time, unless the scheduler could not admit the arriving request anyway.
        """
        scheduler = self.scheduler
        tally = self.tally
        start_s = self.clock
        self._admit_arrived(self._chosen_s if scheduler.has_work else math.inf)
        next_pass = scheduler.schedule()
        seconds = self._times.pass_s(
            next_pass.n_decode,
            next_pass.kv_tokens,
            next_pass.prefill,
            next_pass.pairs,
            [(chunk.tokens, chunk.past) for chunk in next_pass.chunks],
        )
        n_passes = 1
        first_used = scheduler.blocks.used
        last_used = first_used
        if next_pass.chunks:
            for chunk in next_pass.chunks:
                if chunk.sequence.start_s < 0:
                    chunk.sequence.start_s = start_s
        elif self._fast_forward and not self._arrived:
            n_passes = scheduler.identical_passes()
            if n_passes > 1:
                budget_s = until_s - start_s if scheduler.can_admit_arrivals else math.inf
                n_passes, seconds = self._passes_within(n_passes, seconds, budget_s)
                decoding = scheduler.decoding
                last_used += decoding.blocks_needed(n_passes) - decoding.blocks_needed(1)
        self.clock = start_s + seconds
        self._chosen_s = self.clock - seconds / n_passes
        tally.passes += n_passes
        tally.events += 1
        counted_s = self._counted(start_s, seconds)
        if next_pass.n_decode and counted_s:
            counted_passes = n_passes * counted_s / seconds
            tally.decode_passes += counted_passes
            tally.decoded += counted_passes * next_pass.n_decode
        tally.busy_s += counted_s
        tally.system_s += self._in_system * counted_s
        tally.running_s += (self._in_system - len(scheduler.waiting)) * counted_s
        tally.used_s += (first_used + last_used) / 2 * counted_s
        if last_used > tally.peak_used:
            tally.peak_used = last_used
        delivered_s = self._delivered_s(next_pass, start_s, seconds)
        prefilled, ended = scheduler.advance(n_passes)
        for sequence in prefilled:
            if sequence.first_token_s < 0:
                sequence.first_token_s = delivered_s.get(sequence, self.clock)
        self._n_just_ended = len(ended)
        self._in_system -= len(ended)
        tally.preemptions = scheduler.preemptions
        return ended

    def _counted(self, start_s: float, seconds: float) -> float:
        """Those of the seconds from `start_s` on that are in the counted time."""
        first_s, last_s = self.counted_s
        end_s = start_s + seconds
        if first_s <= start_s and end_s <= last_s:
            return seconds
        return max(0.0, min(end_s, last_s) - max(start_s, first_s))

    def _delivered_s(self, of: Pass, start_s: float, seconds: float) -> dict[SequenceState, float]:
        """When the first tokens of prompts are there, if not at the end of the pass.

        Programs of prompts that are computed one after another end before it, the way through the
        stages of a pipeline may end after it.
        """
        if not of.chunks:
            return {}
        if not self._ahead:
            return {
                chunk.sequence: start_s + traverse_s
                for chunk in of.chunks
                if (traverse_s := self._times.traverse_s(chunk.tokens, chunk.past)) > seconds
            }
        decode_s = 0.0
        if of.n_decode:
            decode_s = self._times.pass_s(of.n_decode, of.kv_tokens, 0, 0)
        chunk_s = (seconds - decode_s) / len(of.chunks)
        return {
            chunk.sequence: start_s + decode_s + (i + 1) * chunk_s
            for i, chunk in enumerate(of.chunks)
        }

    def _admit_arrived(self, until_s: float) -> None:
        """Tell the scheduler of the requests that arrived before a time."""
        while self._arrived and self._arrived[0][0].arrival_s < until_s:
            request, kv_ready = self._arrived.popleft()
            self.scheduler.add(request, kv_ready=kv_ready)

    def _passes_within(self, limit: int, first_s: float, budget_s: float) -> tuple[int, float]:
        """Return the fewest decode passes that last at least `budget_s` seconds, and their seconds.

        Args:
            limit: the most passes to return, even if they are shorter.
            first_s: seconds of the first pass.
            budget_s: seconds to fill.
        """
        if first_s >= budget_s:
            return 1, first_s
        if budget_s == math.inf:
            return limit, self._decode_s(limit)
        # Passes become slower as contexts grow, so `first_s` gives an upper bound.
        high = limit
        if first_s > 0:
            high = min(limit, math.ceil(budget_s / first_s))
        high_s = self._decode_s(high)
        while high_s < budget_s and high < limit:
            high = min(limit, 2 * high)
            high_s = self._decode_s(high)
        if high_s < budget_s:
            return high, high_s
        low = 1  # invariant: `low` passes take less than the budget, `high` passes do not
        middle = math.ceil(budget_s / high_s * high)  # from the mean time of a pass
        while high - low > 1:
            middle = min(max(middle, low + 1), high - 1)
            middle_s = self._decode_s(middle)
            if middle_s >= budget_s:
                high = middle
                high_s = middle_s
            else:
                low = middle
            middle = (low + high) // 2
        return high, high_s

    def _decode_s(self, n_passes: int) -> float:
        """Seconds of the next `n_passes` passes if they only decode."""
        decoding = self.scheduler.decoding
        kv_tokens = decoding.mean_kv_tokens(n_passes)
        return n_passes * self._times.pass_s(len(decoding), kv_tokens, 0, 0)
