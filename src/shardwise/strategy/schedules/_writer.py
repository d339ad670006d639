"""A notation for the events of a stage."""

from __future__ import annotations

from collections import Counter, deque

from shardwise.strategy.schedules._event import Event, Kind


class Writer:
    """Builds a stage's list of events from words: `F0 B0 F1+ B1~ W`.

    Each word is a kind and a chunk, for the next microbatch of this chunk. `+` pairs an event with
    the one after it. `~` defers the `W` of a backward pass, and `W` runs the oldest deferred one.
    """

    def __init__(self, stage: int, paths: int = 1) -> None:
        self.stage = stage
        self.paths = paths
        self.events: list[Event] = []
        self._counts: Counter[str] = Counter()
        self._deferred: deque[tuple[int, int]] = deque()

    def add(self, words: str, times: int = 1) -> None:
        """Append `words`, repeated. With two paths, chunk 0 takes even microbatches and 1 odd."""
        for word in words.split() * times:
            if word == "W":
                microbatch, chunk = self._deferred.popleft()
                self.events.append(Event(self.stage, "W", microbatch, chunk))
                continue
            kind: Kind = "B"
            if word[0] == "F":
                kind = "F"
            chunk = int(word[1])
            microbatch = self._counts[word[:2]] * self.paths
            if self.paths > 1:
                microbatch += chunk
            self._counts[word[:2]] += 1
            self.events.append(Event(self.stage, kind, microbatch, chunk, word.endswith("+")))
            if word.endswith("~"):
                self._deferred.append((microbatch, chunk))
