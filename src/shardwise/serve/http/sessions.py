"""What the server has asked of the engine, and the way back of tokens to the event loop.

The engine's thread never waits: it appends to a list and wakes the loop, once for all tokens of a
pass. Each request has tokens of its own waiting, at most as many as it asked for, so a client that
reads slowly holds up nobody.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from shardwise.errors import BadInput
from shardwise.serve.http.errors import ApiError, bad_request, unavailable
from shardwise.serve.request import Engine, Generation, Token


class Session:
    """The outputs of one request.

    Args:
        sessions: that it is one of.
        generations: one for each output.
    """

    def __init__(self, sessions: Sessions, generations: Sequence[Generation]) -> None:
        self._sessions = sessions
        self._generations = generations
        self._running = set(range(len(generations)))
        self._arrived = asyncio.Event()
        self._tokens: list[tuple[int, Token]] = []
        self.waiting = set(self._running)  # outputs without a token

    def start(self) -> None:
        """Ask the engine for all outputs.

        Raises:
            ApiError: 400 if the engine cannot serve them.
        """
        try:
            for index, generation in enumerate(self._generations):
                self._sessions.submit(self, index, generation)
        except BadInput as error:
            raise bad_request(str(error), code="context_length_exceeded") from None

    def put(self, index: int, token: Token) -> None:
        """Take a token of an output, on the event loop."""
        self.waiting.discard(index)
        if token.finish:
            self._running.discard(index)
        self._tokens.append((index, token))
        self._arrived.set()

    async def arrivals(self) -> list[tuple[int, Token]]:
        """All tokens since the last call, at least one, each with the index of its output."""
        await self._arrived.wait()
        self._arrived.clear()
        tokens = self._tokens
        self._tokens = []
        return tokens

    def cancel(self, index: int) -> None:
        """End an output early."""
        if index in self._running:
            self._sessions.engine.cancel(self._generations[index].id)

    def cancel_all(self) -> None:
        """End all outputs early."""
        for index in self._running:
            self.cancel(index)

    def close(self) -> None:
        """End what still runs: nobody waits for it."""
        self.cancel_all()
        self.waiting.clear()
        self._sessions.forget(self)


class Sessions:
    """All requests at the engine.

    Args:
        engine: that serves them.
        most_waiting: requests that may wait for their first token, before more are refused.
    """

    def __init__(self, engine: Engine, most_waiting: int) -> None:
        self.engine = engine
        self._most_waiting = most_waiting
        self._preparing = 0
        self._open: set[Session] = set()
        self._draining = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._delivered: deque[tuple[Session, int, Token]] = deque()
        self._woken = False

    @contextmanager
    def preparing(self) -> Iterator[None]:
        """The time in which a request is read and prepared.

        Raises:
            ApiError: 429 if too many wait, 503 if the server drains or its engine has failed.
        """
        self._loop = asyncio.get_running_loop()
        self.check_ready()
        self._check_room(1)
        self._preparing += 1
        try:
            yield
        finally:
            self._preparing -= 1

    def open(self, generations: Sequence[Generation]) -> Session:
        """Ask the engine for outputs; the caller closes the session.

        Raises:
            ApiError: 429 if too many wait, 400 if the engine cannot serve them.
        """
        self._check_room(len(generations))
        session = Session(self, generations)
        self._open.add(session)
        try:
            session.start()
        except BaseException:
            session.close()
            raise
        return session

    def check_ready(self) -> None:
        """Raise a 503 if the server drains or its engine has failed."""
        if self._draining:
            raise unavailable("the server is shutting down.", code="draining")
        if not self.engine.stats().healthy:
            raise unavailable("the engine has failed; the server's log says why.", code="unhealthy")

    def check_reachable(self) -> None:
        """Raise a 503 if the prefill server does not answer; requests try it all the same."""
        if not self.engine.stats().reachable:
            raise unavailable(
                "the prefill server does not answer; the server's log says why.",
                code="prefill_unreachable",
            )

    @property
    def busy(self) -> bool:
        """Whether requests are being prepared or answered."""
        return bool(self._preparing or self._open)

    def drain(self) -> None:
        """Take no more requests."""
        self._draining = True

    def cancel_all(self) -> None:
        """End all outputs early."""
        for session in list(self._open):
            session.cancel_all()

    def submit(self, session: Session, index: int, generation: Generation) -> None:
        """Ask the engine for an output of a session."""

        def deliver(token: Token) -> None:  # on the engine's thread
            self._delivered.append((session, index, token))
            self._wake()

        self.engine.submit(generation, deliver)

    def forget(self, session: Session) -> None:
        """Drop a session; tokens that still come for it go nowhere."""
        self._open.discard(session)

    def _wake(self) -> None:
        """Let the loop take what was delivered, unless it is about to."""
        if self._woken or self._loop is None:
            return
        self._woken = True
        try:
            self._loop.call_soon_threadsafe(self._take)
        except RuntimeError:  # the loop is closed: the server has gone
            self._delivered.clear()

    def _take(self) -> None:
        self._woken = False  # first: what is delivered from here on wakes the loop again
        while self._delivered:
            session, index, token = self._delivered.popleft()
            session.put(index, token)

    def _check_room(self, more: int) -> None:
        waiting = self._preparing
        for session in self._open:
            waiting += len(session.waiting)
        if waiting + more > self._most_waiting:
            raise ApiError(
                429,
                f"{waiting} outputs wait, and the server queues up to {self._most_waiting}. "
                "Try again later, or at another server.",
                kind="rate_limit_error",
                code="queue_full",
                headers={"retry-after": "1"},
            )
