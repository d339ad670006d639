"""One engine in simulated time: the scheduler of a real one, with a clock instead of a device."""

from __future__ import annotations

import math
from dataclasses import dataclass

from shardwise.simulate.limits import Limits
from shardwise.simulate.request import Live, Request
from shardwise.simulate.scheduler import Scheduler
from shardwise.simulate.times import Times


@dataclass(slots=True)
class Tally:
    """What an engine did, added up over its passes.

    Sums over time are in seconds times what is counted. Used blocks count as the mean of the first
    and the last pass of a stretch of alike ones; all else is exact.
    """

    passes: int = 0
    decode_passes: int = 0  # those in which a sequence decodes
    decoded: int = 0  # sequences that decode, summed over these
    events: int = 0  # passes, where a stretch of alike ones counts once
    busy_s: float = 0.0
    running_s: float = 0.0  # sequences that hold blocks
    system_s: float = 0.0  # requests that wait or run
    used_s: float = 0.0  # blocks held
    peak_used: int = 0
    preemptions: int = 0


class Engine:
    """A scheduler whose passes take the seconds that `times` says.

    Args:
        times: seconds of a pass.
        limits: of the scheduler.
        fast_forward: run alike passes at once. The result is that of single passes: exactly where
            `times` is affine in `kv_tokens`, else a stretch takes the time of its mean pass.
    """

    def __init__(self, times: Times, limits: Limits, fast_forward: bool = True) -> None:
        self.scheduler = Scheduler(limits)
        self.clock = 0.0
        self.tally = Tally()
        self._times = times
        self._fast = fast_forward
        self._in_system = 0
        self._just_ended = 0  # at `clock`, with the last pass

    @property
    def has_work(self) -> bool:
        """Whether requests wait or run."""
        return self._in_system > 0

    def outstanding(self, at_s: float) -> int:
        """Requests that wait or run at a time within the last pass, or after it."""
        return self._in_system + (self._just_ended if at_s < self.clock else 0)

    def submit(self, request: Request, ready: bool = False) -> None:
        """A request arrives.

        Raises:
            BadInput: it can never be served.
        """
        self.scheduler.add(request, ready=ready)
        if self._in_system == 0 and self.clock < request.arrival_s:
            self.clock = request.arrival_s
        self._in_system += 1
        self.tally.system_s += self.clock - request.arrival_s  # within the last pass

    def step(self, until_s: float = math.inf) -> list[Live]:
        """Run the next pass, or a stretch of alike ones; returns the sequences that ended.

        Args:
            until_s: somebody may arrive then: no pass of a stretch starts at that time or later,
                unless arrivals change nothing.
        """
        scheduler, tally, start = self.scheduler, self.tally, self.clock
        now = scheduler.schedule()
        seconds = self._times.pass_s(now.n_decode, now.kv_tokens, now.prefill, now.pairs)
        n, first_used = 1, scheduler.blocks.used
        last_used = first_used
        if now.chunks:
            for chunk in now.chunks:
                if chunk.live.start_s < 0:
                    chunk.live.start_s = start
        elif self._fast:
            n = scheduler.steady()
            if n > 1:
                room = until_s - start if scheduler.is_open else math.inf
                n, seconds = self._stretch(n, seconds, room)
                decoding = scheduler.decoding
                last_used += decoding.blocks(n) - decoding.blocks(1)
        self.clock = start + seconds
        tally.passes += n
        tally.events += 1
        if now.n_decode:
            tally.decode_passes += n
            tally.decoded += n * now.n_decode
        tally.busy_s += seconds
        tally.system_s += self._in_system * seconds
        tally.running_s += (self._in_system - len(scheduler.waiting)) * seconds
        tally.used_s += (first_used + last_used) / 2 * seconds
        if last_used > tally.peak_used:
            tally.peak_used = last_used
        prefilled, ended = scheduler.advance(n)
        for live in prefilled:
            if live.first_s < 0:
                live.first_s = self.clock
        self._just_ended = len(ended)
        self._in_system -= len(ended)
        tally.preemptions = scheduler.preemptions
        return ended

    def _stretch(self, most: int, first_s: float, room_s: float) -> tuple[int, float]:
        """The fewest alike passes, up to `most`, that fill `room_s` seconds; and their seconds."""
        if first_s >= room_s:
            return 1, first_s
        if room_s == math.inf:
            return most, self._seconds(most)
        # Passes grow slower as contexts grow, so the first one's time gives too many.
        high = min(most, math.ceil(room_s / first_s)) if first_s > 0 else most
        high_s = self._seconds(high)
        while high_s < room_s and high < most:
            high = min(most, 2 * high)
            high_s = self._seconds(high)
        if high_s < room_s:
            return high, high_s
        low = 1  # does not fill the room; `high` does
        middle = math.ceil(room_s / high_s * high)  # by the mean time: too few, but not by much
        while high - low > 1:
            middle = min(max(middle, low + 1), high - 1)
            middle_s = self._seconds(middle)
            if middle_s >= room_s:
                high, high_s = middle, middle_s
            else:
                low = middle
            middle = (low + high) // 2
        return high, high_s

    def _seconds(self, n: int) -> float:
        decoding = self.scheduler.decoding
        return n * self._times.pass_s(len(decoding), decoding.mean_read(n), 0, 0)
