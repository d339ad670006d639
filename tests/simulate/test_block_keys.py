"""Keys of blocks: equal only for equal tokens in and before a block."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from shardwise.simulate.block_keys import block_keys

TOKENS = st.lists(st.integers(0, 2), max_size=12)


@given(TOKENS, TOKENS, st.integers(1, 4))
def test_keys_are_equal_as_far_as_the_tokens_are(
    first: list[int], second: list[int], size: int
) -> None:
    keys = [block_keys(tokens, size) for tokens in (first, second)]
    assert [len(row) for row in keys] == [len(first) // size, len(second) // size]
    for index, (one, other) in enumerate(zip(*keys, strict=False), 1):
        assert (one == other) == (first[: index * size] == second[: index * size])


@given(TOKENS, st.integers(1, 4), st.integers(0, 12))
def test_first_keys_are_continued(tokens: list[int], size: int, n_known: int) -> None:
    keys = block_keys(tokens, size, b"a")
    assert block_keys(tokens, size, b"a", keys[:n_known]) == keys


def test_texts_of_different_salts_share_nothing() -> None:
    assert not set(block_keys(range(64), 16, b"a")) & set(block_keys(range(64), 16))


def test_keys_are_the_same_in_every_process() -> None:
    keys = block_keys([1, 2, 3, 2**32 - 1], 2, b"salt")
    assert [key.hex() for key in keys] == [
        "727b55b0c22642be8e3d327fef18bb83",
        "95bf327ab07ad0918535f6ee38cb17c4",
    ]
