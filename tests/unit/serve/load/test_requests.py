"""Requests of a load: as many, as long and as often as is asked, and the same for a seed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from shardwise.errors import BadInput
from shardwise.plan.serving.arrivals import Arrivals
from shardwise.serve.load.requests import (
    TOKENS,
    Prompts,
    Shape,
    TextLength,
    closed_loop,
    open_loop,
    random_tokens,
    random_words,
    text_pieces,
)
from shardwise.simulate import Request, Traffic

SHAPE = Shape(arrivals=Arrivals(), prompt=20, output=5, requests=40, seconds=None, seed=3)
RECORDING = Traffic(
    prompt=np.array([4, 6, 8]),
    output=np.array([1, 2, 3]),
    arrival_s=np.array([0.0, 1.0, 4.0]),
    prefix=["a", "a", None],
    shared=np.array([3, 3, 0]),
)
RECORDED = replace(SHAPE, arrivals=Arrivals(kind="trace", trace=RECORDING), requests=None)


@pytest.mark.parametrize("variation", [0.0, 1.0, 3.0])
def test_the_mean_rate_is_exact(variation: float) -> None:
    traffic = open_loop(replace(SHAPE, arrivals=Arrivals(variation=variation)), 8.0)
    assert len(traffic) == 40
    assert traffic.rate == pytest.approx(8.0, rel=1e-12)
    assert {(request.prompt, request.output) for request in traffic} == {(20, 5)}


def test_a_seed_gives_the_same_arrivals() -> None:
    first = open_loop(SHAPE, 8.0).arrival_s
    assert np.array_equal(first, open_loop(SHAPE, 8.0).arrival_s)
    assert not np.array_equal(first, open_loop(replace(SHAPE, seed=4), 8.0).arrival_s)


def test_seconds_instead_of_a_number() -> None:
    traffic = open_loop(replace(SHAPE, requests=None, seconds=5.0), 8.0)
    assert len(traffic) == 40
    assert float(traffic.arrival_s[-1]) == pytest.approx(5.0)


def test_a_recording_keeps_its_lengths() -> None:
    traffic = open_loop(RECORDED, None)
    assert list(traffic) == list(RECORDING)
    assert open_loop(RECORDED, 3.0).rate == pytest.approx(3.0)
    assert len(open_loop(replace(RECORDED, requests=2), None)) == 2
    assert len(open_loop(replace(RECORDED, seconds=2.0), None)) == 2
    users = closed_loop(RECORDED, 2)
    assert (users.users, users.arrival_s) == (2, None)
    assert users.prompt.tolist() == [4, 6, 8]


def test_what_is_too_much_is_refused() -> None:
    with pytest.raises(BadInput, match="2,000,000 requests in one measurement"):
        closed_loop(replace(SHAPE, requests=2_000_000), 2)
    with pytest.raises(BadInput, match="more than one client can send"):
        open_loop(SHAPE, 1e9)
    with pytest.raises(BadInput, match="users are more"):
        closed_loop(SHAPE, 10**6)
    with pytest.raises(BadInput, match="prompt of 20,000,000 tokens"):
        replace(SHAPE, prompt=20_000_000)


@pytest.mark.parametrize("kind", [random_tokens, random_words])
def test_random_prompts_have_their_length(kind: type[Prompts]) -> None:
    prompts = kind("seed")
    first = prompts(Request(0, 0.0, 50, 1))
    items = first if isinstance(first, list) else first.split()
    assert len(items) == 50
    assert first == kind("seed")(Request(0, 9.0, 50, 8))
    assert first != prompts(Request(1, 0.0, 50, 1))
    assert first != kind("other")(Request(0, 0.0, 50, 1))


def test_a_shared_prefix_is_shared() -> None:
    prompts = random_tokens("seed")
    first = prompts(Request(0, 0.0, 50, 1, "a", 30))
    second = prompts(Request(1, 0.0, 60, 1, "a", 30))
    other = prompts(Request(2, 0.0, 60, 1, "b", 30))
    assert (len(first), len(second)) == (50, 60)
    assert first[:30] == second[:30] != other[:30]
    assert first[30:] != second[30:50]
    assert set(first) <= set(TOKENS)


def test_a_small_vocabulary_has_all_random_tokens() -> None:
    """A model of bytes has 256 of them, and special tokens behind."""
    prompt = random_tokens("seed", 272)(Request(0, 0.0, 500, 1))
    assert 0 < min(prompt) < max(prompt) < 256
    assert random_tokens("seed", 32_000)(Request(0, 0.0, 50, 1)) == random_tokens("seed")(
        Request(0, 0.0, 50, 1)
    )


def test_pieces_of_a_text() -> None:
    text = "0123456789" * 3
    prompts = text_pieces(text, "seed", TextLength())
    long = prompts(Request(0, 0.0, 25, 1))
    assert isinstance(long, str)
    assert len(long) == 100
    assert long in text * 10
    shared = prompts(Request(1, 0.0, 10, 1, "a", 8))
    assert shared[:32] == prompts(Request(2, 0.0, 10, 1, "a", 8))[:32]
    assert len(shared) == 40


def test_pieces_have_the_tokens_that_the_server_counts() -> None:
    """Three characters are a token here, and a template adds five tokens."""
    length = TextLength.of([(30, 15), (60, 25), (36, 17)])
    assert (length.per_token, length.fixed) == (pytest.approx(3.0), pytest.approx(5.0))
    prompt = text_pieces("0123456789", "seed", length)(Request(0, 0.0, 25, 1))
    assert len(prompt) / 3 + 5 == 25
    assert TextLength.of([(30, 15), (60, 15)]) == TextLength()
