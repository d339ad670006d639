"""Copies of tokens that travel by count: where rows begin and arrive, products of groups of rows
with their gradients, and steps on eight devices."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from shardwise.runtime.experts import ragged, routing
from shardwise.runtime.kernels import grouped_matmul
from tests.unit.runtime.distance import beyond
from tests.unit.runtime.expert_cases import COUNTED_RUNS
from tests.unit.runtime.scripts import answer, selected

CHIPS, E, N, K = 4, 8, 24, 2


def _random(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def test_copies_lie_by_expert_and_none_is_lost() -> None:
    scores = _random(N, E)
    experts = jnp.asarray(np.argsort(-scores, axis=1)[:, :K].astype(np.int32))
    slots, count = routing.sort_by_expert(experts, E)
    np.testing.assert_array_equal(count, np.bincount(np.asarray(experts).ravel(), minlength=E))
    rows = np.asarray(slots.slot_of_choice).T
    assert sorted(rows.flat) == list(range(N * K))
    tokens = np.broadcast_to(np.arange(N)[:, None], (N, K))
    np.testing.assert_array_equal(np.asarray(slots.token_of_slot)[rows], tokens)
    of_row = np.repeat(np.arange(E), count)
    np.testing.assert_array_equal(of_row[rows], experts)


def test_rows_arrive_by_expert_and_sender_and_come_back() -> None:
    counts = np.random.default_rng(3).integers(0, 5, (CHIPS, E)).astype(np.int32)
    counts[1] = 0  # a chip whose tokens all went elsewhere
    e = E // CHIPS
    owners = [(s, x) for s in range(CHIPS) for x in range(E) for _ in range(counts[s, x])]
    rows = {s: [r for r in owners if r[0] == s] for s in range(CHIPS)}
    found = [ragged.round_trip(jnp.asarray(counts), jnp.int32(chip)) for chip in range(CHIPS)]
    arrived = _carried(rows, [trip.out for trip in found], e)
    for chip in range(CHIPS):
        mine = range(chip * e, (chip + 1) * e)
        wanted = [(s, x) for x in mine for s in range(CHIPS) for _ in range(counts[s, x])]
        assert arrived[chip] == wanted
    assert _carried(arrived, [trip.back for trip in found], e) == rows


def _carried(rows: dict[int, Any], sent: list[ragged.RaggedTransfer], e: int) -> dict[int, Any]:
    """What `ragged_all_to_all` does, row by row."""
    there: dict[int, dict[int, Any]] = {chip: {} for chip in rows}
    for source, trip in enumerate(sent):
        for i in range(CHIPS * e):
            target, (begin, size, arrive) = i // e, (int(v[i]) for v in trip[:3])
            assert size == sent[target].recv_sizes[source * e + i % e]
            for j in range(size):
                assert arrive + j not in there[target]
                there[target][arrive + j] = rows[source][begin + j]
    for found in there.values():
        assert sorted(found) == list(range(len(found)))
    return {chip: [found[i] for i in sorted(found)] for chip, found in there.items()}


WAYS: dict[str, Callable[..., Any]] = {
    "xla": grouped_matmul.by_xla,
    "megablox": functools.partial(grouped_matmul.by_megablox, interpret=True),
}


@pytest.mark.parametrize("n_rows", [256, 200])
@pytest.mark.parametrize("way", WAYS)
def test_products_of_groups_are_those_of_each_matrix(way: str, n_rows: int) -> None:
    """Behind the last group lies what nobody reads: nothing is asked of it, nothing flows back."""
    sizes = np.array([100, 0, 77], np.int32)
    n, of_row = sizes.sum(), np.repeat(np.arange(3), sizes)
    x, w, dy = _random(n_rows, 128), _random(3, 128, 256), _random(n_rows, 256)
    dy[n:] = 0

    def all_rows(x: Any, w: Any) -> Any:
        return WAYS[way](x, w, jnp.asarray(sizes))

    @jax.jit
    def told(x: Any, w: Any, dy: Any) -> Any:
        y, back = jax.vjp(all_rows, x, w)
        return y, *back(dy)

    y, dx, dw = told(x, w, dy)
    expected = np.einsum("ri,rij->rj", x[:n], w[of_row])
    np.testing.assert_allclose(y[:n], expected, atol=1e-4)
    np.testing.assert_allclose(dx[:n], np.einsum("rj,rij->ri", dy[:n], w[of_row]), atol=1e-4)
    for group in range(3):
        mine = of_row == group
        np.testing.assert_allclose(dw[group], x[:n][mine].T @ dy[:n][mine], atol=1e-4)


@pytest.fixture(scope="module")
def runs(root: Path, request: pytest.FixtureRequest) -> Any:
    return answer(root, "parity_ragged", *selected(request))


@pytest.mark.oracle
@pytest.mark.parametrize("name", COUNTED_RUNS)
def test_numbers_are_those_of_places_for_all_tokens(runs: Any, name: str) -> None:
    run = runs[name]
    assert run["one"][0] != run["one"][1] != run["one"][2]
    assert beyond(run) == {}
