"""A small language for the events of a stage."""

from __future__ import annotations

from collections import deque

from shardwise.strategy.schedules._event import Event, Kind


class Writer:
    """Collects a stage's events from words: `F0 B0 F1+ B1~ W`.

    A letter and a chunk; each takes the next microbatch of its chunk. `+` pairs an event with the
    one after it. `~` puts the weights of a backward pass off, and `W` does the oldest put off.
    """

    def __init__(self, stage: int, paths: int = 1) -> None:
        self.stage, self.paths = stage, paths
        self.found: list[Event] = []
        self._next: dict[str, int] = {}
        self._put_off: deque[tuple[int, int]] = deque()

    def add(self, words: str, times: int = 1) -> None:
        """`words`, over and over. With two paths, chunk 0 takes even microbatches and 1 odd."""
        for word in words.split() * times:
            if word == "W":
                microbatch, chunk = self._put_off.popleft()
                self.found.append(Event(self.stage, "W", microbatch, chunk))
                continue
            i, chunk = self._next.get(word[:2], 0), int(word[1])
            self._next[word[:2]] = i + 1
            microbatch = i * self.paths + (chunk if self.paths > 1 else 0)
            kind: Kind = "F" if word[0] == "F" else "B"
            self.found.append(Event(self.stage, kind, microbatch, chunk, word.endswith("+")))
            if word.endswith("~"):
                self._put_off.append((microbatch, chunk))
