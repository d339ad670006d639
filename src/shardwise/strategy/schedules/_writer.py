"""A short notation for the events of a stage: `F0 B0 F1+ B1~ W`."""

from __future__ import annotations

from collections import Counter, deque

from shardwise.strategy.schedules._event import Event, Kind


class Writer:
    """Builds a stage's list of events from words such as `F0 B0 F1+ B1~ W`.

    A word is a kind of event and a chunk; each use of the same word takes the next microbatch. `+`
    pairs the event with the next one. `B0~` leaves the gradient of the weights to a later word `W`,
    which runs the oldest one that is left.
    """

    def __init__(self, stage: int, paths: int = 1) -> None:
        self.stage = stage
        self.paths = paths
        self.events: list[Event] = []
        self._counts: Counter[str] = Counter()
        self._deferred: deque[tuple[int, int]] = deque()

    def add(self, words: str, times: int = 1) -> None:
        """Append the events of `words`, repeated `times` times.

        With two paths, chunk 0 has the even and chunk 1 the odd microbatches.
        """
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
