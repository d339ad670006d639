"""Requests are sent when they should be, whatever becomes of those before them."""

from __future__ import annotations

import asyncio
import time

import numpy as np

from shardwise.serve.load.reply import Reply
from shardwise.serve.load.requests import Prompt
from shardwise.serve.load.schedule import Clock, Replies, send_all
from shardwise.simulate import Request, Traffic


class Answers:
    """Answers that take a known time, and the order of what happened."""

    def __init__(self, answer_s: dict[int, float]) -> None:
        self.answer_s = answer_s
        self.clock = Clock()
        self.events: list[tuple[str, int]] = []
        self.running = 0
        self.most = 0

    async def send(self, prompt: Prompt, output: int) -> Reply:
        send_s = self.clock()
        self.events.append(("sent", output))
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(self.answer_s.get(output, 0.001))
        self.running -= 1
        self.events.append(("ended", output))
        end_s = self.clock()
        return Reply(send_s=send_s, token_s=(end_s,), end_s=end_s, expected_tokens=output)

    def run(self, traffic: Traffic, seconds: float | None = None) -> Replies:
        return asyncio.run(send_all(traffic, prompt, self.send, self.clock, seconds=seconds))


def prompt(request: Request) -> Prompt:
    return [request.id]


def lengths(n: int) -> np.ndarray:
    return np.arange(1, n + 1)


def test_a_slow_answer_delays_no_other() -> None:
    arrival_s = 0.01 * np.arange(5)
    answers = Answers({1: 0.3})
    replies = answers.run(Traffic(prompt=lengths(5), output=lengths(5), arrival_s=arrival_s))
    assert [n for what, n in answers.events if what == "sent"] == [1, 2, 3, 4, 5]
    assert answers.events[-1] == ("ended", 1)
    assert [reply.expected_tokens for reply in replies.replies] == [1, 2, 3, 4, 5]
    assert len(replies.late_s) == 5
    assert all(late_s >= 0 for late_s in replies.late_s)
    sends = [reply.send_s for reply in replies.replies]
    assert all(at >= due for at, due in zip(sends, arrival_s, strict=True))


def test_users_wait_for_their_answers() -> None:
    answers = Answers({})
    replies = answers.run(Traffic(prompt=lengths(10), output=lengths(10), users=3))
    assert len(replies.replies) == 10
    assert answers.most == 3
    assert replies.late_s == ()


def test_users_stop_after_the_time() -> None:
    answers = Answers(dict.fromkeys(range(1000), 0.02))
    replies = answers.run(Traffic(prompt=lengths(999), output=lengths(999), users=2), seconds=0.1)
    assert 2 <= len(replies.replies) <= 2 * 6


def test_the_lag_of_the_loop_is_seen() -> None:
    async def send(_: Prompt, output: int) -> Reply:
        await asyncio.sleep(0.02)
        time.sleep(0.1)  # blocks the loop, as a client without enough CPU does
        await asyncio.sleep(0.02)
        return Reply(send_s=0.0, token_s=(0.1,), end_s=0.1, expected_tokens=output)

    traffic = Traffic(prompt=lengths(1), output=lengths(1), arrival_s=np.zeros(1))
    replies = asyncio.run(send_all(traffic, prompt, send, Clock()))
    assert max(replies.lag_s, default=0.0) >= 0.05
