"""Sequences whose end is known one pass later, and clients that go away, in every state."""

from __future__ import annotations

import pytest

from shardwise.simulate import Limits, Request, Scheduler, SequenceState


def run(scheduler: Scheduler, n_passes: int) -> None:
    for _ in range(n_passes):
        scheduler.schedule()
        scheduler.advance()


def preempted_pair() -> tuple[Scheduler, SequenceState, SequenceState]:
    """Two sequences, of which the pass that is scheduled now has preempted the younger."""
    scheduler = Scheduler(Limits(n_blocks=4, block_tokens=4, watermark=0.0))
    old, young = (scheduler.add(Request(number, 0.0, 7, 6)) for number in range(2))
    run(scheduler, 2)
    scheduler.schedule()
    return scheduler, old, young


def test_who_was_preempted_is_told_for_one_pass() -> None:
    scheduler, _, young = preempted_pair()
    assert scheduler.preempted == [young]
    scheduler.advance()
    scheduler.schedule()
    assert scheduler.preempted == []


def test_a_sequence_that_was_preempted_after_its_last_token_is_dropped() -> None:
    scheduler, old, young = preempted_pair()
    assert scheduler.advance(stopped=[young]).ended == [young]
    assert (list(scheduler.waiting), scheduler.running) == ([], 1)
    scheduler.cancel(old)
    assert (scheduler.has_work, scheduler.blocks.used) == (False, 0)


def test_a_sequence_that_ended_by_itself_meanwhile_ends_once() -> None:
    scheduler = Scheduler(Limits(n_blocks=10, block_tokens=4))
    sequence = scheduler.add(Request(0, 0.0, 6, 2))
    other = scheduler.add(Request(1, 0.0, 6, 9))
    run(scheduler, 1)
    scheduler.schedule()
    assert scheduler.advance(stopped=[sequence]).ended == [sequence]
    scheduler.schedule()
    assert scheduler.advance(stopped=[sequence]).ended == []
    assert (list(scheduler.decoding.members), scheduler.blocks.used) == ([other], 2)


@pytest.mark.parametrize("output", [1, 5])
def test_the_first_token_is_the_last(output: int) -> None:
    scheduler = Scheduler(Limits(n_blocks=10, block_tokens=4))
    sequence = scheduler.add(Request(0, 0.0, 6, output))
    scheduler.schedule()
    result = scheduler.advance(stopped=[sequence])
    assert (result.prefilled, result.ended) == ([sequence], [sequence])
    assert (sequence.generated, scheduler.has_work, scheduler.blocks.used) == (1, False, 0)


def test_a_request_may_stop_while_it_waits_or_is_computed_in_part() -> None:
    limits = Limits(n_blocks=20, block_tokens=4, max_tokens=4, max_sequences=3)
    scheduler = Scheduler(limits)
    partial, waiting = (scheduler.add(Request(number, 0.0, 9, 9)) for number in range(2))
    scheduler.schedule()
    assert scheduler.advance(stopped=[partial, waiting]).ended == [partial, waiting]
    assert (scheduler.has_work, scheduler.blocks.used) == (False, 0)


def test_a_cancelled_request_is_cancelled_once() -> None:
    scheduler = Scheduler(Limits(n_blocks=10, block_tokens=4))
    sequence = scheduler.add(Request(0, 0.0, 6, 9))
    run(scheduler, 1)
    for _ in range(2):
        scheduler.cancel(sequence)
    scheduler.schedule()
    assert scheduler.advance(stopped=[sequence]).ended == []
    assert (scheduler.has_work, scheduler.blocks.used) == (False, 0)


def test_the_next_turn_of_a_chat_finds_what_the_last_one_has_generated() -> None:
    keys = {0: "abc", 1: "abcd"}
    scheduler = Scheduler(
        Limits(n_blocks=20, block_tokens=4), lambda sequence: keys[sequence.request.id]
    )
    scheduler.add(Request(0, 0.0, 5, 8), keys[0][:1])  # 12 of 13 tokens are written
    run(scheduler, 8)
    assert (scheduler.has_work, scheduler.blocks.cached) == (False, 3)
    answer = scheduler.add(Request(1, 0.0, 17, 1), keys[1])
    assert scheduler.schedule().chunks == ((answer, 12, 5),)


def test_a_preempted_sequence_finds_its_own_blocks() -> None:
    scheduler = Scheduler(
        Limits(n_blocks=5, block_tokens=4, watermark=0.0),
        lambda sequence: [(sequence.request.id, index) for index in range(9)],
    )
    old, young = (scheduler.add(Request(number, 0.0, 7, 7)) for number in range(2))
    run(scheduler, 3)  # 9 tokens each would need 6 blocks
    assert young in scheduler.waiting
    scheduler.schedule()
    scheduler.advance(stopped=[old])
    chunk = scheduler.schedule().chunks[0]
    assert (chunk.sequence, chunk.past, chunk.tokens) == (young, 8, 1)
