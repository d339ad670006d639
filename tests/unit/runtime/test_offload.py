"""A step with arrays in host memory is the step without: its numbers, and what lies there."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from shardwise.runtime.training import host_offload
from tests.unit.runtime.distance import BOUNDS, beyond
from tests.unit.runtime.scripts import answer, rows, selected

SAME = ("activations", "queries", "optimizer", "both")  # under one layout, in fp32
APART = ("optimizer, zero 1", "optimizer, zb-v")
QUICK = {"nothing", "both"}
# Arrays of all layers that the forward pass leaves there; a layer keeps 11 without remat.
KEPT = {"nothing": 0, "activations": 11, "queries": 2}
# Arrays of the state that lie there; there are 12 weights, and the optimizer keeps three of each.
N = 12
STATE = {name: [3 * N, 0] for name in ("optimizer", "both", *APART)} | {
    "both, master": [N, 3 * N, 0]
}


@pytest.fixture(scope="module")
def runs(root: Path, request: pytest.FixtureRequest) -> Any:
    names = ["nothing", *selected(request)]
    if "both, master" in names:
        names.append("master")
    return answer(root, "parity_offload", *dict.fromkeys(names))


@pytest.mark.parametrize(
    "name", rows(["nothing", *SAME, *APART], QUICK & {"nothing", *SAME, *APART})
)
def test_numbers_are_those_of_one_device(runs: Any, name: str) -> None:
    assert len(runs[name]["losses"]) == 20
    assert beyond(runs[name]) == {}


@pytest.mark.parametrize("name", rows(SAME, QUICK & {*SAME}))
def test_what_waits_outside_comes_back_as_it_was(runs: Any, name: str) -> None:
    for what in ("losses", *BOUNDS):
        assert runs[name][what] == runs["nothing"][what]


@pytest.mark.parametrize("name", rows(["both, master"], ()))
def test_master_weights_that_wait_outside_come_back_as_they_were(runs: Any, name: str) -> None:
    for what in ("losses", *BOUNDS):
        assert runs[name][what] == runs["master"][what]


@pytest.mark.parametrize("name", rows(KEPT, QUICK & {*KEPT}))
def test_the_forward_pass_leaves_in_host_memory_what_is_named(runs: Any, name: str) -> None:
    assert runs[name]["kept"] == KEPT[name]


@pytest.mark.parametrize("name", rows(STATE, QUICK & {*STATE}))
def test_the_state_lies_in_host_memory_before_and_after(runs: Any, name: str) -> None:
    assert runs[name]["before"] == runs[name]["after"] == STATE[name]


def adam(gradients: Any, state: Any, weights: Any) -> Any:
    """What comes out, and which part of it goes to host memory, as a step has it."""
    updates, after = optax.adam(0.1).update(gradients, state, weights)
    return {"weights": optax.apply_updates(weights, updates), "moments": after}


def outside(found: Any) -> Any:
    return {
        "weights": jax.tree.map(lambda _: False, found["weights"]),
        "moments": jax.tree.map(host_offload.is_offloadable, found["moments"]),
    }


def test_each_part_begins_when_the_one_before_is_back() -> None:
    weights = {name: jnp.full((4, 4), float(i)) for i, name in enumerate("abc")}
    gradients = jax.tree.map(jnp.cos, weights)
    laid = jax.sharding.SingleDeviceSharding(jax.devices()[0], memory_kind=host_offload.KIND)
    here = optax.adam(0.1).init(weights)
    state = jax.tree.map(
        lambda x: jax.device_put(x, laid) if host_offload.is_offloadable(x) else x, here
    )

    def step(*args: Any) -> Any:
        return host_offload.apply_in_parts(adam, args, outside, jax.tree.leaves(args[0]))

    found = jax.jit(step)(gradients, state, weights)
    plain = jax.jit(adam)(gradients, here, weights)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(plain), strict=True):
        assert (jax.device_get(a) == jax.device_get(b)).all()
    barriers = [
        eqn
        for eqn in jax.make_jaxpr(step)(gradients, state, weights).eqns
        if eqn.primitive.name == "optimization_barrier"
    ]
    made = [v for eqn in barriers for v in eqn.invars]
    assert len(barriers) == len(weights)
    # Two moments of a weight and the gradients; then two and those of the weight before.
    assert [len(eqn.invars) for eqn in barriers] == [2 + 3, 2 + 2, 2 + 2]
    assert len({*made}) == len(made)


def test_devices_without_host_memory_are_refused() -> None:
    class Device:
        def __init__(self, *kinds: str) -> None:
            self.kinds = kinds

        def addressable_memories(self) -> list[Any]:
            return [SimpleNamespace(kind=kind) for kind in self.kinds]

    both = [Device("device", host_offload.KIND), Device("device")]
    assert host_offload.is_available(np.array(both[:1]))
    assert not host_offload.is_available(np.array(both))
