"""Turns of clients: the client that was served the fewest tokens gets the next place.

This is the virtual token counter of "Fairness in Serving Large Language Models" (OSDI 2024, arXiv
2401.00588): a client is charged the prompt tokens that are computed for it and the tokens that it
gains in each pass. One that comes back is lifted to the least counter of those that wait, so that
idle time is no credit. A queue needs this from its second client on; until then all counters would
be equal.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping

from shardwise.simulate.request import SequenceState


class Turns:
    """Puts the request that comes next to the front of a queue.

    Requests of one client stay in the order of their arrival. Preempted sequences, which are at the
    front, come before all others.

    Args:
        queue: the waiting sequences; may have some already, all of one client.
        client: the client served so far.

    Attributes:
        counters: client -> tokens served to it, with those by which it was lifted. A client that
            is missing would be lifted when it comes.
    """

    def __init__(self, queue: deque[SequenceState], client: str) -> None:
        self._queue = queue
        self._waiting: dict[str, int] = {}  # client -> its requests in the queue, if any
        self.counters = {client: 0}
        self._level = 0  # highest counter to which a client was lifted
        self._last_client = client  # whose request left the queue last
        for sequence in queue:
            self.arrive(sequence)

    def served(self, client: str) -> int:
        """Tokens served to a client, with those by which it was lifted."""
        return self.counters.get(client, self._level)

    def arrive(self, sequence: SequenceState) -> None:
        """Account for a sequence that was put into the queue, and lift a client that was idle."""
        client = sequence.request.client
        if client not in self._waiting:
            self._lift(client)
        self._waiting[client] = self._waiting.get(client, 0) + 1

    def leave(self, sequence: SequenceState) -> None:
        """Account for a sequence that was taken out of the queue."""
        client = sequence.request.client
        self._last_client = client
        self._waiting[client] -= 1
        if self._waiting[client] == 0:
            del self._waiting[client]

    def admit(self, sequence: SequenceState) -> None:
        """Account for a sequence that was taken out of the queue to run; bring the next one.

        Its computed prompt and its first token are charged, once.
        """
        if sequence.preemptions == 0:
            request = sequence.request
            self._charge(request.client, request.prompt - sequence.hit_tokens + 1)
        self.leave(sequence)
        self.bring_next()

    def charge_decoding(
        self, decoding: Collection[SequenceState], usual: int, gained: Mapping[SequenceState, int]
    ) -> None:
        """Charge the tokens of decoding sequences.

        Args:
            usual: tokens that a sequence gained.
            gained: sequence -> tokens that it gained instead.
        """
        for sequence in decoding:
            self._charge(sequence.request.client, gained.get(sequence, usual))

    def bring_next(self) -> None:
        """Move the request that comes next to the front of the queue."""
        queue = self._queue
        if len(self._waiting) < 2 or queue[0].preemptions:
            return
        client = min(self._waiting, key=self.served)
        for index, sequence in enumerate(queue):
            if sequence.request.client == client:
                del queue[index]
                queue.appendleft(sequence)
                return

    def _lift(self, client: str) -> None:
        """Raise the counter of a client that had no request in the queue to the least of those."""
        least = min(map(self.served, self._waiting or (self._last_client,)))
        self._level = max(self._level, least)
        for other, tokens in list(self.counters.items()):
            if tokens <= self._level and other not in self._waiting and other != self._last_client:
                del self.counters[other]
        self.counters[client] = max(self.served(client), self._level)

    def _charge(self, client: str, tokens: int) -> None:
        self.counters[client] = self.served(client) + tokens
