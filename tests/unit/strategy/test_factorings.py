"""Divisions of a torus among mesh axes: which of them no other one beats, one by one."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.strategy.factorings import MAX_EXHAUSTIVE, factorings, undominated

Shape = tuple[int, ...]


def links(
    parts_of_axes: tuple[Shape, ...], shape: Shape, wrapped: tuple[bool, ...], pipe: int | None
) -> list[float]:
    """Bandwidth of each mesh axis in links: two of a ring, one of a line, shared by its strides."""
    bandwidths = []
    stride = [1] * len(shape)
    for index, parts in enumerate(parts_of_axes):
        shares = []
        for axis, size in enumerate(parts):
            if size > 1:
                is_ring = wrapped[axis] and size * stride[axis] == shape[axis]
                shares.append((1 + (is_ring and index != pipe)) / stride[axis])
            stride[axis] *= size
        bandwidths.append(min(shares, default=math.inf) if index == pipe else sum(shares))
    return bandwidths


def one_by_one(
    sizes: Shape, shape: Shape, wrapped: tuple[bool, ...], pipe: int | None
) -> list[tuple[Shape, ...]]:
    """Factorings without those that another one matches, if it is better or comes earlier."""
    every = factorings(sizes, shape)
    bandwidths = [links(one, shape, wrapped, pipe) for one in every]
    kept = []
    for i, own in enumerate(bandwidths):
        beaten = any(
            all(a >= b for a, b in zip(other, own, strict=True)) and (other != own or j < i)
            for j, other in enumerate(bandwidths)
            if j != i
        )
        if not beaten:
            kept.append(every[i])
    return kept


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.sampled_from([4, 6, 8, 16]), min_size=3, max_size=3),
    st.lists(st.sampled_from([2, 4, 6, 8]), min_size=2, max_size=3),
    st.lists(st.booleans(), min_size=3, max_size=3),
    st.booleans(),
)
def test_those_that_remain_are_the_best_of_all(
    shape: list[int], sizes: list[int], wrapped: list[bool], has_pipe: bool
) -> None:
    pipe = len(sizes) - 1 if has_pipe else None
    case = (tuple(sizes), tuple(shape), tuple(wrapped), pipe)
    every = factorings(case[0], case[1])
    remaining = undominated(*case)
    if len(every) <= MAX_EXHAUSTIVE:
        assert list(remaining) == every
    else:
        assert list(remaining) == one_by_one(*case)


def test_a_torus_full_of_five_axes_has_few_that_remain() -> None:
    case = ((4, 4, 4, 16, 2), (8, 16, 16), (True, True, True), None)
    every = factorings(case[0], case[1])
    remaining = undominated(*case)
    assert MAX_EXHAUSTIVE < len(remaining) * 4 < len(every)
    assert list(remaining) == one_by_one(*case)
