"""The order of layers: periods found, kept by families, kept under overrides and in plans."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.errors import BadShape
from shardwise.models import Layer, LayerGroup, Mlp, ModelConfig, Segment, load, names, stack
from shardwise.models.presets import presets
from shardwise.models.stack import order, respread, segments, unrolled


def runs(*parts):
    return tuple(Segment(kinds=kinds, repeats=n) for kinds, n in parts)


@given(st.lists(st.integers(0, 2), max_size=60))
def test_segments_are_the_layers_they_came_from(kinds):
    assert unrolled(segments(kinds)) == tuple(kinds)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=6), st.integers(2, 9))
def test_a_repeated_period_is_one_segment_no_longer_than_it(period, n):
    found = segments(period * n)
    assert len(found) == 1
    assert len(found[0].kinds) <= len(period)


@pytest.mark.parametrize(
    ("kinds", "found"),
    [
        ("LGLGLG", runs(((0, 1), 3))),
        ("LLLLLG" * 2 + "LL", runs(((0, 0, 0, 0, 0, 1), 2), ((0,), 2))),
        ("DDDMMMM", runs(((0,), 3), ((1,), 4))),
        ("ABC", runs(((0,), 1), ((1,), 1), ((2,), 1))),
        ("", ()),
    ],
)
def test_segments_of_known_stacks(kinds, found):
    known = {}
    assert segments([known.setdefault(kind, len(known)) for kind in kinds]) == found


def test_groups_one_after_the_other_need_no_order():
    assert order((0, 0, 1, 1, 1)) == ()
    assert order((0, 1, 0)) == runs(((0,), 1), ((1,), 1), ((0,), 1))


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("llama3-8b", runs(((0,), 32))),
        ("gemma2-2b", runs(((0, 1), 13))),
        ("gemma3-4b", runs(((0, 0, 0, 0, 0, 1), 5), ((0,), 4))),
        ("deepseek-v3", runs(((0,), 3), ((1,), 58))),
        ("gpt-oss-20b", runs(((0, 1), 12))),
        ("llama4-maverick", runs(((0, 1, 0, 2), 12))),
        ("llama4-scout", runs(((0, 0, 0, 1), 12))),
    ],
)
def test_published_stacks(name, found):
    assert stack(load(name)) == found


@pytest.mark.parametrize("name", names())
def test_every_stack_has_the_layers_of_its_groups(name):
    config = load(name)
    kinds = unrolled(stack(config))
    assert [kinds.count(i) for i in range(len(config.groups))] == [g.count for g in config.groups]


def test_listed_layers_stand_where_they_are_listed():
    from shardwise.models import from_dict

    data = presets()["qwen1.5-moe-a2.7b"].read() | {"mlp_only_layers": [0, 3]}
    config = from_dict(data | {"num_hidden_layers": 7}, name="mine")
    dense = [isinstance(config.groups[kind].layer.ffn, Mlp) for kind in unrolled(stack(config))]
    assert dense == [True, False, False, True, False, False, False]


def test_overrides_keep_the_order():
    assert stack(load("gemma2-2b,n_layers=40")) == runs(((0, 1), 20))
    assert stack(load("gemma3-4b,n_layers=12")) == runs(((0, 0, 0, 0, 0, 1), 2))
    assert stack(load("deepseek-v3,n_layers=10")) == runs(((0,), 1), ((1,), 9))
    assert stack(load("gemma2-2b,d_ff=512")) == stack(load("gemma2-2b"))


@given(
    st.lists(st.integers(0, 2), min_size=3, max_size=20),
    st.lists(st.integers(1, 9), min_size=3, max_size=3),
)
def test_other_counts_are_always_met(kinds, counts):
    stated = order([0, 1, 2, *kinds])
    met = unrolled(respread(stated, counts))
    assert not met or [met.count(kind) for kind in range(3)] == counts


def test_where_no_continuation_gives_the_counts_kinds_keep_their_places():
    assert unrolled(respread(runs(((0, 1), 4)), (6, 2))) == (0, 0, 0, 1, 0, 0, 0, 1)


def test_an_order_of_other_layers_is_refused():
    group = LayerGroup(layer=Layer(ffn=Mlp(d_ff=8)), count=2)
    for bad in (runs(((0,), 3)), runs(((0, 1), 1)), runs(((0,), 2), ((5,), 1))):
        with pytest.raises(BadShape, match="does not match the layer counts of its groups, 2"):
            ModelConfig(name="m", d_model=8, vocab=8, groups=(group,), order=bad)
    with pytest.raises(BadShape, match="a segment of 0 layers 1 times is empty"):
        Segment(kinds=())
