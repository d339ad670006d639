"""Sums in int8: what arrives with what is lost is the sum, and steps follow those of exact sums."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from shardwise.runtime.training.int8_reduce import Cut, ErrorFeedback, quantize, reduce
from shardwise.workload import GRADIENTS_PER_SCALE
from tests.unit.runtime.parity_int8 import LAYOUTS
from tests.unit.runtime.scripts import answer, rows, selected

N, SHAPE = 4, (8, 3, 70)  # copies; 70 numbers fill no row
NAMES = ("copies",)
WAYS: dict[str, tuple[tuple[Cut, ...], tuple[str, ...]]] = {
    "everywhere": ((), NAMES),
    "first dim": (((NAMES, N, -3),), ()),
}


@functools.partial(jax.jit, static_argnames="way")
def summed(gradient: jax.Array, lost: jax.Array, way: str) -> ErrorFeedback:
    """Of all copies, which the first dim counts."""
    one = lambda g, e: reduce(g, e, *WAYS[way])
    return jax.vmap(one, axis_name=NAMES[0])(gradient, lost)


def delivered(found: jax.Array, way: str) -> jax.Array:
    """The whole sum, of what each copy has of it."""
    return found[0] if way == "everywhere" else found.reshape(SHAPE)


@pytest.mark.parametrize("way", WAYS)
def test_over_steps_all_of_a_gradient_arrives(way: str) -> None:
    lost = jnp.zeros((N, *SHAPE))
    arrived = wanted = jnp.zeros(SHAPE)
    for key in jax.random.split(jax.random.key(0), 10):
        gradient = jax.random.normal(key, (N, *SHAPE))
        found = summed(gradient, lost, way)
        arrived, wanted = arrived + delivered(found.gradient, way), wanted + gradient.sum(0)
        lost = found.residual
    assert jnp.abs(arrived + lost.sum(0) - wanted).max() < 2e-5
    # A step of rounding for each copy and one for their sum: the largest number is below 5.
    assert jnp.abs(arrived - wanted).max() < (N + 2) * 10 / 127 / 2


def test_every_copy_has_the_same_sum() -> None:
    gradient = jax.random.normal(jax.random.key(1), (N, *SHAPE))
    found = summed(gradient, jnp.zeros_like(gradient), "everywhere").gradient
    assert (found == found[0]).all()


def test_a_number_that_is_none_arrives_as_none() -> None:
    gradient = jnp.ones((N, *SHAPE)).at[2, 5, 1, 7].set(jnp.nan)
    for way in WAYS:
        found = delivered(summed(gradient, jnp.zeros_like(gradient), way).gradient, way)
        assert jnp.isnan(found[5, 1, 7])
        assert not jnp.isnan(found[0]).any()


def test_rows_are_rounded_to_their_largest_number() -> None:
    shape = (3, GRADIENTS_PER_SCALE)
    x = jax.random.normal(jax.random.key(2), shape) * jnp.array([[1e-3], [1.0], [0.0]])
    whole, scale = quantize(x)
    assert whole.dtype == jnp.int8
    assert jnp.abs(whole).max(axis=1).tolist() == [127, 127, 0]
    assert (jnp.abs(whole * scale - x) <= scale / 2 * (1 + 1e-5)).all()


@pytest.fixture(scope="module")
def runs(root: Path, request: pytest.FixtureRequest) -> Any:
    return answer(root, "parity_int8", *selected(request))


GAP = 5e-4  # nats, of losses that fall from 4.7 to 4.2


@pytest.mark.parametrize("name", rows(LAYOUTS, []))
def test_losses_follow_those_of_exact_sums(runs: Any, name: str) -> None:
    losses = runs[name]["losses"]
    assert losses["exact"][-1] < losses["exact"][0] - 0.4
    assert losses["int8"] == pytest.approx(losses["exact"], abs=GAP)
    assert losses["int8"] != losses["exact"]


@pytest.mark.parametrize("name", rows(LAYOUTS, []))
def test_weights_end_far_nearer_than_where_what_is_lost_is_forgotten(runs: Any, name: str) -> None:
    """What is kept is lost once; what is forgotten adds up from step to step."""
    far = runs[name]["far"]
    assert 0 < far["int8"] < far["forgetting"] / 3


@pytest.mark.parametrize("name", rows(LAYOUTS, []))
def test_the_program_exchanges_int8_and_scales(runs: Any, name: str) -> None:
    assert runs[name]["exchanged"] == ["f32", "s8"]
