"""Sends the requests of a load: at their times (open loop), or from a number of users (closed)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from shardwise.serve.load.reply import Reply
from shardwise.serve.load.requests import Prompt, Prompts
from shardwise.simulate import Traffic

Send = Callable[[Prompt, int], Awaitable[Reply]]

HEARTBEAT_S = 0.01  # between two measurements of the event loop's lag


class Clock:
    """Seconds since the latest start."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Set the clock to 0."""
        self._start_s = time.perf_counter()

    def __call__(self) -> float:
        return time.perf_counter() - self._start_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Replies:
    """Replies in the order in which the requests were sent, and how punctual the client was.

    Args:
        late_s: seconds from the time of each arrival to the sending; empty for a closed loop.
        lag_s: seconds by which the event loop resumed a waiting task too late, every `HEARTBEAT_S`.
    """

    replies: tuple[Reply, ...]
    late_s: tuple[float, ...]
    lag_s: tuple[float, ...]


async def send_all(
    traffic: Traffic,
    prompts: Prompts,
    send: Send,
    clock: Clock,
    *,
    seconds: float | None = None,
    on_reply: Callable[[int], None] = lambda done: None,
) -> Replies:
    """Send the requests of `traffic` and wait for all answers.

    Args:
        prompts: makes the prompt of a request; called shortly before it is sent.
        clock: started here; `send` reads it.
        seconds: time after which the users of a closed loop send no more.
        on_reply: called after each reply with the number of replies.
    """
    replies: list[Reply] = []
    late_s: list[float] = []
    lag_s: list[float] = []

    async def answer(prompt: Prompt, output: int) -> None:
        replies.append(await send(prompt, output))
        on_reply(len(replies))

    async def send_at_times() -> None:
        async with asyncio.TaskGroup() as group:
            for request in traffic:
                prompt = prompts(request)
                await asyncio.sleep(max(0.0, request.arrival_s - clock()))
                late_s.append(clock() - request.arrival_s)
                group.create_task(answer(prompt, request.output))

    async def send_from_users() -> None:
        requests = iter(traffic)

        async def user() -> None:
            for request in requests:
                if seconds is not None and clock() >= seconds:
                    return
                await answer(prompts(request), request.output)

        async with asyncio.TaskGroup() as group:
            for _ in range(traffic.users):
                group.create_task(user())

    clock.start()
    heartbeat = asyncio.create_task(_measure_lag(lag_s))
    try:
        await (send_from_users() if traffic.users else send_at_times())
    finally:
        heartbeat.cancel()
        await asyncio.gather(heartbeat, return_exceptions=True)
    replies.sort(key=lambda reply: reply.send_s)
    return Replies(replies=tuple(replies), late_s=tuple(late_s), lag_s=tuple(lag_s))


async def _measure_lag(lag_s: list[float]) -> None:
    while True:
        start_s = time.perf_counter()
        await asyncio.sleep(HEARTBEAT_S)
        lag_s.append(time.perf_counter() - start_s - HEARTBEAT_S)
