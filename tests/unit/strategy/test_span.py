"""Runs of chips that continue each other are one run."""

from __future__ import annotations

import math

import pytest

from shardwise.ops.collective import time_s
from shardwise.strategy.span import Ring, Span, Tier, join

W1 = 9e10
SHAPE, WRAPPED = (16, 4), (True, True)


def test_tensor_inside_and_fsdp_outside_are_one_full_ring() -> None:
    tensor = Span((Ring(0, 4, 1, False, W1),), 1e-6)
    fsdp = Span((Ring(0, 4, 4, True, W1),), 1e-6)
    for spans in ((tensor, fsdp), (fsdp, tensor)):
        joined = join(spans, SHAPE, WRAPPED)
        assert joined == Span((Ring(0, 16, 1, True, W1),), 1e-6)
        assert time_s("all_gather", 1e9, joined) == 1e9 / (2 * W1)


def test_runs_that_do_not_meet_stay_apart() -> None:
    gap = join(
        (Span((Ring(0, 2, 1, False, W1),)), Span((Ring(0, 2, 8, True, W1),))), SHAPE, WRAPPED
    )
    assert len(gap.rings) == 2
    other = join((Span((Ring(0, 16, 1, True, W1),)), Span((Ring(1, 4, 1, True, W1),))),
                 SHAPE, WRAPPED)  # fmt: skip
    assert [r.axis for r in other.rings] == [0, 1]
    assert other.ring_size == 64


def test_a_joined_run_that_is_not_the_whole_axis_is_a_line() -> None:
    inner, outer = Span((Ring(0, 2, 1, False, W1),)), Span((Ring(0, 4, 2, False, W1),))
    (run,) = join((inner, outer), SHAPE, WRAPPED).rings
    assert (run.size, run.closed) == (8, False)
    (run,) = join((inner, Span((Ring(0, 8, 2, False, W1),))), SHAPE, (False, True)).rings
    assert (run.size, run.closed) == (16, False)


def test_tiers_multiply_from_the_inside_out() -> None:
    tensor = Span(tiers=(Tier("node", 4, 4.5e11),))
    fsdp = Span(tiers=(Tier("node", 2, 4.5e11), Tier("scale-out", 16, 5e10)))
    data = Span(tiers=(Tier("scale-out", 4, 5e10), Tier("dcn", 2, 6e9)))
    joined = join((data, fsdp, tensor), (), ())
    assert [(t.name, t.size) for t in joined.tiers] == [("node", 8), ("scale-out", 64), ("dcn", 2)]
    assert joined.size == 4 * 32 * 8 == math.prod(t.size for t in joined.tiers)


def test_what_is_lent_stays_lent() -> None:
    lent = (Ring(1, 4, 1, True, W1),)
    one, two = (
        Span((Ring(0, 4, 1, False, W1),), 1e-6, borrowed=lent),
        Span((Ring(0, 4, 4, True, W1),), 1e-6, borrowed=lent),
    )
    assert join((one, two), SHAPE, WRAPPED).borrowed == lent


@pytest.mark.parametrize("stride", [1, 2, 4])
def test_a_share_of_a_link(stride: int) -> None:
    assert Ring(0, 4, stride, False, W1).share_bytes_per_s == W1 / stride
