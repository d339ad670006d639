"""The scheduler as an engine uses it: an engine that stores what its passes write, and reads it."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.errors import BadInput
from shardwise.simulate import Limits, Pass, Request, Scheduler, SequenceState, Traffic
from tests.simulate.cases import limits, traffics


class Device:
    """A KV cache that knows which token was written where. Equal tokens have equal names."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.size = scheduler.limits.block_tokens
        self.memory: dict[tuple[int, int], Hashable] = {}
        self.contexts: dict[SequenceState, int] = {}

    def run(self, now: Pass) -> None:
        """Every sequence reads all of its tokens before, then all write their new ones."""
        gain = self.scheduler.decoding.gain(1)
        asked = [(sequence, self.contexts[sequence], gain) for sequence in now.decode]
        asked += [(sequence, past, tokens) for sequence, past, tokens in now.chunks]
        assert len({sequence for sequence, _, _ in asked}) == len(asked)
        for sequence, past, _ in asked:
            places = self.places(sequence)
            assert [self.memory[places[i]] for i in range(past)] == names(sequence, range(past))
        writers: dict[int, SequenceState] = {}
        for sequence, past, tokens in asked:
            assert tokens > 0
            places, new = self.places(sequence), range(past, past + tokens)
            for i, name in zip(new, names(sequence, new), strict=True):
                self.memory[places[i]] = name
                assert writers.setdefault(places[i][0], sequence) is sequence
            self.contexts[sequence] = past + tokens

    def places(self, sequence: SequenceState) -> list[tuple[int, int]]:
        table = self.scheduler.block_table(sequence)
        assert len(set(table)) == len(table)
        assert all(0 <= block < self.scheduler.limits.n_blocks for block in table)
        return [(block, i) for block in table for i in range(self.size)]


def names(sequence: SequenceState, at: range) -> list[Hashable]:
    request = sequence.request
    shared = request.shared if request.prefix is not None else 0
    return [(request.prefix if i < shared else request.id, i) for i in at]


def check(scheduler: Scheduler, now: Pass) -> None:
    """Budgets and counts of a pass."""
    limit, blocks = scheduler.limits, scheduler.blocks
    assert now.n_decode == len(now.decode)
    assert now.n_decode + now.prefill > 0
    assert now.n_decode + len(now.chunks) <= limit.max_sequences
    if limit.chunked:
        assert now.n_decode + now.prefill <= limit.max_tokens
    else:
        assert now.n_decode == 0 or now.prefill == 0
    assert blocks.used + blocks.cached + blocks.free == limit.n_blocks
    assert min(blocks.used, blocks.cached, blocks.free) >= 0


@settings(max_examples=200)
@given(traffics(closed=False), limits(), st.integers(1, 4), st.randoms(use_true_random=False))
def test_every_pass_finds_what_it_reads(
    traffic: Traffic, limit: Limits, draft: int, chance: Random
) -> None:
    """With a draft, sequences keep from 1 to `draft` tokens of a pass, each its own number."""
    if draft > 1:
        limit = replace(limit, tokens_per_pass=draft, n_blocks=limit.n_blocks + 3)
    scheduler = Scheduler(limit)
    device, made = Device(scheduler), {}
    for request in traffic:
        scheduler.add(request)
    while scheduler.has_work:
        now = scheduler.schedule()
        check(scheduler, now)
        gain, members = scheduler.decoding.gain(1), list(now.decode)
        assert now.kv_tokens == sum(device.contexts[sequence] + gain for sequence in members)
        device.run(now)
        kept = {sequence: chance.randint(1, draft) for sequence in members} if draft > 1 else {}
        prefilled, ended = scheduler.advance(gained=kept)
        assert all(sequence.past == sequence.prefill_target for sequence in prefilled)
        for sequence, tokens in kept.items():
            device.contexts[sequence] += tokens - gain
        for sequence in ended:
            made[sequence.request.id] = sequence.generated
            assert (
                device.contexts[sequence] >= sequence.request.prompt + sequence.request.output - 1
            )
        decoding = scheduler.decoding
        assert all(
            device.contexts[sequence] == decoding.context(sequence) for sequence in decoding.members
        )
        assert all(sequence not in decoding for sequence in ended)
    assert made == dict(enumerate(traffic.output.tolist()))
    assert scheduler.blocks.used == 0


def test_a_sequence_that_stops_early_gives_its_blocks_back() -> None:
    scheduler = Scheduler(Limits(n_blocks=10, block_tokens=4, max_tokens=300))
    sequence = scheduler.add(Request(0, 0.0, 6, 20))
    scheduler.schedule()
    scheduler.advance()
    scheduler.schedule()
    assert scheduler.block_table(sequence) == [0, 1]
    _, ended = scheduler.advance(stopped=[sequence])
    assert ended == [sequence]
    assert sequence.generated == 2
    assert (scheduler.blocks.used, scheduler.has_work) == (0, False)


def test_a_cancelled_request_leaves_nothing() -> None:
    limits = Limits(n_blocks=20, block_tokens=4, max_tokens=4, max_sequences=3)
    scheduler = Scheduler(limits)
    sequences = [scheduler.add(Request(i, 0.0, 6, 9)) for i in range(4)]
    for _ in range(3):  # the first decodes, the second is computed in part, the others wait
        scheduler.schedule()
        scheduler.advance()
    assert (len(scheduler.decoding), scheduler.running, len(scheduler.waiting)) == (1, 2, 2)
    for sequence in sequences:
        assert scheduler.has_work
        scheduler.cancel(sequence)
    assert (scheduler.has_work, scheduler.blocks.used, scheduler.schedule().n_decode) == (0, 0, 0)


def test_a_shared_prefix_is_computed_once() -> None:
    scheduler = Scheduler(Limits(n_blocks=20, block_tokens=4))
    first, second = (scheduler.add(Request(i, 0.0, 14, 2, "p", 10)) for i in range(2))
    now = scheduler.schedule()  # what is computed in a pass can be read from the next one on
    assert [(past, tokens) for _, past, tokens in now.chunks] == [(0, 14), (0, 14)]
    assert scheduler.blocks.used == 8
    scheduler.advance()
    assert scheduler.blocks.used == 6  # two full blocks of the prefix are one
    third = scheduler.add(Request(2, 0.0, 11, 1, "p", 8))
    now = scheduler.schedule()
    assert now.chunks == ((third, 8, 3),)
    assert now.chunks[0].pairs == 9 + 10 + 11
    tables = [scheduler.block_table(sequence) for sequence in (first, second, third)]
    assert len({tuple(table[:2]) for table in tables}) == 1
    assert not set(tables[0][2:]) & set(tables[1][2:])
    scheduler.advance()
    assert (scheduler.blocks.used, scheduler.blocks.cached) == (0, 2)


def test_a_prompt_in_the_cache_still_computes_a_token() -> None:
    scheduler = Scheduler(Limits(n_blocks=20, block_tokens=4))
    for i in range(2):
        scheduler.add(Request(i, 0.0, 8, 1, "p", 8))
        now = scheduler.schedule()
        scheduler.advance()
    assert [(past, tokens) for _, past, tokens in now.chunks] == [(4, 4)]


def test_a_block_computed_in_part_is_not_shared() -> None:
    scheduler = Scheduler(Limits(n_blocks=20, block_tokens=4, max_tokens=6, max_sequences=3))
    for i in range(2):
        scheduler.add(Request(i, 0.0, 9, 1, "p", 8))
    scheduler.schedule()  # 6 of 9 tokens
    scheduler.advance()
    now = scheduler.schedule()
    assert [(past, tokens) for _, past, tokens in now.chunks] == [(6, 3), (4, 3)]


def test_the_oldest_prefix_is_evicted_first_and_its_end_before_its_start() -> None:
    scheduler = Scheduler(Limits(n_blocks=6, block_tokens=4, watermark=0.0))
    for i, prefix in enumerate("ab"):
        scheduler.add(Request(i, 0.0, 9, 1, prefix, 8))
        scheduler.schedule()
        scheduler.advance()
    blocks = scheduler.blocks
    assert (blocks.used, blocks.cached, blocks.free) == (0, 4, 2)
    scheduler.add(Request(2, 0.0, 12, 1))
    scheduler.schedule()
    assert blocks.evictions == 1
    assert blocks.match((("a", 0), ("a", 1)), 2) == 1
    assert blocks.match((("b", 0), ("b", 1)), 2) == 2


def test_the_youngest_gives_way_and_is_computed_again() -> None:
    scheduler = Scheduler(Limits(n_blocks=4, block_tokens=4, watermark=0.0))
    old, young = (scheduler.add(Request(i, 0.0, 7, 6)) for i in range(2))
    for _ in range(2):  # the prompts, and the token that fills their second blocks
        scheduler.schedule()
        scheduler.advance()
    now = scheduler.schedule()
    assert list(now.decode) == [old]
    assert (list(scheduler.waiting), young.preemptions, young.generated) == ([young], 1, 2)
    while old.generated < 6:
        assert not now.chunks
        scheduler.advance()
        now = scheduler.schedule()
    assert now.chunks == ((young, 0, 9),)  # prompt and both tokens
    assert scheduler.advance().prefilled == [young]
    assert young.generated == 3


@pytest.mark.parametrize(("watermark", "admitted"), [(0.0, [0, 1]), (0.2, [0])])
def test_admission_leaves_blocks_to_those_that_run(watermark: float, admitted: list[int]) -> None:
    scheduler = Scheduler(Limits(n_blocks=10, block_tokens=4, watermark=watermark))
    for i, prompt in enumerate((34, 4)):  # the first needs 9 blocks, and has nobody beside it
        scheduler.add(Request(i, 0.0, prompt, 2))
    assert [chunk.sequence.request.id for chunk in scheduler.schedule().chunks] == admitted


def test_prompts_are_cut_to_what_decoding_leaves() -> None:
    scheduler = Scheduler(Limits(n_blocks=100, block_tokens=4, max_tokens=10, max_sequences=4))
    first = scheduler.add(Request(0, 0.0, 8, 9))
    second = scheduler.add(Request(1, 0.0, 25, 9))
    seen = []
    for _ in range(4):
        now = scheduler.schedule()
        seen.append((list(now.decode), [tuple(chunk) for chunk in now.chunks], now.pairs))
        scheduler.advance()
    assert seen == [
        ([], [(first, 0, 8), (second, 0, 2)], 36 + 3),
        ([first], [(second, 2, 9)], 2 * 9 + 45),
        ([first], [(second, 11, 9)], 11 * 9 + 45),
        ([first], [(second, 20, 5)], 20 * 5 + 15),
    ]


def test_whole_prompts_come_first_and_alone() -> None:
    limits = Limits(n_blocks=100, block_tokens=4, max_tokens=10, max_sequences=4, chunked=False)
    scheduler = Scheduler(limits)
    for i, prompt in enumerate((4, 6, 1, 30)):
        scheduler.add(Request(i, 0.0, prompt, 9))
    seen = []
    for _ in range(4):
        now = scheduler.schedule()
        seen.append((now.n_decode, [chunk.tokens for chunk in now.chunks]))
        scheduler.advance()
    assert seen == [(0, [4, 6]), (0, [1]), (0, [30]), (4, [])]


def test_contiguous_memory_is_reserved_to_the_end() -> None:
    request = Request(0, 0.0, 9, 24)  # 32 tokens are written at most
    for paged, at_start in ((True, 3), (False, 8)):
        scheduler = Scheduler(Limits(n_blocks=8, block_tokens=4, paged=paged))
        sequence = scheduler.add(request)
        used = []
        while scheduler.has_work:
            scheduler.schedule()
            used.append(scheduler.blocks.used)
            assert len(scheduler.block_table(sequence)) == used[-1]
            scheduler.advance()
        assert (used[0], used[-1]) == (at_start, 8)


def test_what_can_never_be_served_is_refused() -> None:
    scheduler = Scheduler(Limits(n_blocks=8, block_tokens=4))
    scheduler.add(Request(0, 0.0, 9, 24))
    with pytest.raises(BadInput, match="need 9 blocks of 4 tokens, the KV cache has 8"):
        scheduler.add(Request(1, 0.0, 9, 25))
    with pytest.raises(BadInput, match="output at least 1, not 0 and 1"):
        scheduler.add(Request(2, 0.0, 0, 1))
    with pytest.raises(BadInput, match="output at least 2, not 1 and 1"):
        scheduler.add(Request(3, 0.0, 1, 1), kv_ready=True)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"n_blocks": 0}, "n_blocks must be a positive integer, not 0"),
        ({"block_tokens": 1.5}, "block_tokens must be a positive integer, not 1.5"),
        ({"watermark": 1.0}, "watermark must be in \\[0, 1\\), not 1.0"),
        ({"tokens_per_pass": 0.5}, "tokens_per_pass must be in \\[1, 64\\], not 0.5"),
        ({"max_tokens": 8}, "max_tokens 8 is below max_sequences 256"),
    ],
)
def test_limits_that_cannot_be(wrong: dict[str, float], told: str) -> None:
    with pytest.raises(BadInput, match=told):
        Limits(**{"n_blocks": 10, **wrong})
