"""Clients take turns, and the requests of one client stay in order."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import replace
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.simulate import Limits, Pass, Request, Scheduler, SequenceState, Traffic
from shardwise.simulate.turns import Turns
from tests.simulate.cases import limits, traffics


def admit_one_by_one(scheduler: Scheduler) -> str:
    """Serve all requests; the clients in the order of their first passes."""
    order: dict[SequenceState, str] = {}
    while scheduler.has_work:
        for chunk in scheduler.schedule().chunks:
            order.setdefault(chunk.sequence, chunk.sequence.request.client)
        scheduler.advance()
    return "".join(order.values())


def request(number: int, client: str, prompt: int = 4, output: int = 4) -> Request:
    return Request(number, 0.0, prompt, output, client=client)


def single() -> Scheduler:
    """One sequence at a time."""
    return Scheduler(Limits(n_blocks=100, block_tokens=4, max_sequences=1, max_tokens=64))


def test_a_client_with_many_requests_does_not_hold_up_another() -> None:
    scheduler = single()
    for number, client in enumerate("aaaaaabb"):
        scheduler.add(request(number, client))
    assert admit_one_by_one(scheduler) == "ababaaaa"


def test_tokens_count_rather_than_requests() -> None:
    scheduler = single()
    for number in range(8):
        scheduler.add(request(number, "a", prompt=4, output=4))
    for number in range(4):
        scheduler.add(request(8 + number, "b", prompt=12, output=12))
    assert admit_one_by_one(scheduler) == "abaaabaaabab"


def test_a_client_that_was_idle_has_no_credit() -> None:
    scheduler = single()
    for number, client in enumerate("baaaa"):
        scheduler.add(request(number, client))
    for _ in range(12):  # b, and two of a
        scheduler.schedule()
        scheduler.advance()
    for number in range(3):
        scheduler.add(request(5 + number, "b"))
    assert admit_one_by_one(scheduler) == "ababb"


def test_cached_tokens_are_not_charged() -> None:
    limits = Limits(n_blocks=100, block_tokens=4, max_sequences=1, max_tokens=64)
    scheduler = Scheduler(limits)
    for number in range(4):
        scheduler.add(Request(number, 0.0, 41, 1, "p", 40, client="a"))
    for number in range(4):
        scheduler.add(Request(4 + number, 0.0, 42, 1, client="b"))
    # The first request of a computes 41 tokens, each of the others 1.
    assert admit_one_by_one(scheduler) == "ababaabb"


def test_a_preempted_sequence_comes_before_all_clients() -> None:
    scheduler = Scheduler(Limits(n_blocks=4, block_tokens=4, watermark=0.0))
    scheduler.add(request(0, "a", 7, 6))
    young = scheduler.add(request(1, "a", 7, 6))
    for _ in range(2):
        scheduler.schedule()
        scheduler.advance()
    scheduler.add(request(2, "b"))
    scheduler.schedule()
    assert scheduler.preempted == [young]
    assert [sequence.request.id for sequence in scheduler.waiting] == [1, 2]
    now = Pass((), 0, 0.0, (), 0, 0)
    while not now.chunks:
        scheduler.advance()
        now = scheduler.schedule()
    assert now.chunks[0].sequence is young


def test_a_cancelled_request_gives_its_turn_away() -> None:
    scheduler = single()
    sequences = [scheduler.add(request(number, client)) for number, client in enumerate("aabb")]
    scheduler.cancel(sequences[2])
    scheduler.cancel(sequences[3])
    scheduler.add(request(4, "c"))
    assert admit_one_by_one(scheduler) == "aca"


def test_clients_that_are_gone_are_forgotten() -> None:
    queue: deque[SequenceState] = deque()
    turns = Turns(queue, "")
    for number in range(1000):
        sequence = SequenceState(request(number, f"client {number}"))
        queue.append(sequence)
        turns.arrive(sequence)
        turns.bring_next()
        turns.admit(queue.popleft())
        turns.charge_decoding([sequence], 3, {})
    assert len(turns.counters) <= 2


@settings(max_examples=100)
@given(traffics(closed=False, at_once=True), limits(), st.integers(0, 2**32).map(Random))
def test_clients_that_wait_are_served_alike(
    traffic: Traffic, limit: Limits, chance: Random
) -> None:
    """Counted in tokens, nobody who waits is ahead by more than one prompt and one full batch."""
    scheduler = Scheduler(replace(limit, tokens_per_pass=1.0, prefix_cache=False))
    order: dict[str, list[int]] = {"a": [], "b": []}
    for number in traffic:
        scheduler.add(number._replace(client=chance.choice("ab")))
    served: Counter[str] = Counter()
    while scheduler.has_work:
        now = scheduler.schedule()
        for sequence in now.decode:
            served[sequence.request.client] += 1
        for chunk in now.chunks:
            sequence = chunk.sequence
            if chunk.past == 0 and sequence.preemptions == 0:
                order[sequence.request.client].append(sequence.request.id)
                served[sequence.request.client] += sequence.request.prompt + 1
        if {sequence.request.client for sequence in scheduler.waiting} == {"a", "b"}:
            assert abs(served["a"] - served["b"]) <= 26 + 25 * limit.max_sequences
        scheduler.advance()
    assert all(numbers == sorted(numbers) for numbers in order.values())
    assert scheduler.blocks.used == 0
