"""The scheduler of an engine with pools: routing, limits, and what happens in one pool alone."""

from __future__ import annotations

from shardwise.simulate.block_keys import block_keys
from shardwise.simulate.limits import Limits
from shardwise.simulate.pooled import PooledScheduler
from shardwise.simulate.request import Request, SequenceState

LIMITS = Limits(n_blocks=32, block_tokens=4, max_sequences=8, max_tokens=32, watermark=0.0)


def add(scheduler: PooledScheduler, prompt: range, output: int = 4) -> SequenceState:
    tokens = list(prompt)
    request = Request(0, 0.0, len(tokens), output)
    return scheduler.add(request, block_keys(tokens, LIMITS.block_tokens))


def run(scheduler: PooledScheduler, n_passes: int = 1) -> None:
    for _ in range(n_passes):
        scheduler.schedule()
        scheduler.advance({}, [])


def test_each_pool_has_an_equal_part_of_the_limits() -> None:
    scheduler = PooledScheduler(LIMITS, 4)
    for pool in scheduler.pools:
        limits = pool.limits
        assert (limits.n_blocks, limits.max_sequences, limits.max_tokens) == (8, 2, 8)
    for i in range(8):
        add(scheduler, range(100 * i, 100 * i + 20))
    work = scheduler.schedule()
    assert work.prefill == LIMITS.max_tokens
    assert [chunk.tokens for chunk in work.chunks] == [8] * 4


def test_requests_go_to_the_pool_with_the_fewest() -> None:
    scheduler = PooledScheduler(LIMITS, 4)
    states = [add(scheduler, range(100 * i, 100 * i + 5)) for i in range(6)]
    assert [state.pool for state in states] == [0, 1, 2, 3, 0, 1]
    scheduler.cancel(states[3])
    assert add(scheduler, range(7)).pool == 3


def test_a_prompt_goes_to_the_pool_that_has_half_of_it_if_there_is_room() -> None:
    scheduler = PooledScheduler(LIMITS, 4)
    first = [add(scheduler, range(100 * i, 100 * i + 12), output=1) for i in range(3)]
    assert first[2].pool == 2
    run(scheduler, 2)
    assert not scheduler.has_work
    continued = add(scheduler, range(200, 216))
    assert continued.pool == 2  # for its cache
    other = add(scheduler, range(190, 210))
    assert other.pool == 0  # starts with other tokens
    little = add(scheduler, range(200, 228))
    assert little.pool == 1  # less than half is cached
    again = add(scheduler, range(200, 213))
    assert again.pool == 2
    full = add(scheduler, range(200, 216))
    assert full.pool == 3  # pool 2 has as many sequences as it may have
    work = scheduler.schedule()
    assert continued.hit_tokens == 12
    assert [chunk.past for chunk in work.chunks if chunk.sequence is continued] == [12]


def test_a_pool_without_blocks_is_not_chosen_for_its_cache() -> None:
    scheduler = PooledScheduler(LIMITS, 4)
    add(scheduler, range(12), output=1)
    run(scheduler, 2)
    held = add(scheduler, range(16), output=10)  # 4 of the 8 blocks, and 3 later
    assert held.pool == 0
    run(scheduler, 7)
    assert add(scheduler, range(16)).pool == 1


def test_preemption_and_cancellation_concern_one_pool() -> None:
    scheduler = PooledScheduler(LIMITS, 2)  # of 16 blocks each
    large = [add(scheduler, range(1000 * i, 1000 * i + 28), output=20) for i in (0, 1, 2)]
    assert [state.pool for state in large] == [0, 1, 0]
    while not scheduler.preempted:
        assert scheduler.has_work
        run(scheduler)
    assert scheduler.preempted == [large[2]]
    assert [pool.preemptions for pool in scheduler.pools] == [1, 0]
    assert scheduler.preemptions == 1
    used = [pool.blocks.used for pool in scheduler.pools]
    scheduler.cancel(large[0])
    after = [pool.blocks.used for pool in scheduler.pools]
    assert after[0] == 0 < used[0]
    assert after[1] == used[1] > 0
    assert scheduler.blocks_used == after[1]


def test_tables_are_of_the_pool_and_copies_of_the_engine() -> None:
    limits = Limits(
        n_blocks=8, block_tokens=4, max_sequences=2, max_tokens=32, n_host_blocks=8, watermark=0.0
    )
    scheduler = PooledScheduler(limits, 2)
    copied = []
    for start in (0, 500):
        both = [add(scheduler, range(start + i, start + i + 13), output=1) for i in (0, 100)]
        assert [state.pool for state in both] == [0, 1]
        for _ in range(2):
            for chunk in scheduler.schedule().chunks:
                assert {*scheduler.block_table(chunk.sequence)} <= {*range(4)}
            copied.append(scheduler.take_copies())
            scheduler.advance({}, [])
    (to_host,) = [copies.to_host for copies in copied if copies.to_host]
    blocks, host_blocks = zip(*to_host, strict=True)
    assert {block // 4 for block in blocks} == {host // 4 for host in host_blocks} == {0, 1}
    assert all(block // 4 == host // 4 for block, host in to_host)
