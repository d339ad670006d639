"""A layout: what it multiplies to, and which combinations cannot be."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.errors import BadShape
from shardwise.strategy.layout import Layout
from shardwise.strategy.mesh import Mesh
from shardwise.vocabulary import LAYER, PARTS


def test_global_batch_and_degrees() -> None:
    mesh = Mesh(data=2, fsdp=4, expert=8, tensor=2)
    layout = Layout(mesh=mesh, zero=3, micro_batch=3, n_microbatches=5, expert_tensor=1)
    assert layout.data_shards == 64
    assert layout.global_batch == 3 * 5 * 64
    assert layout.expert_degree == 16
    assert Layout(mesh=mesh, zero=3).expert_degree == 8


def test_what_runs_again() -> None:
    mesh = Mesh()
    assert not any(Layout(mesh=mesh).recomputes(part) for part in PARTS)
    assert all(Layout(mesh=mesh, recomputed=(LAYER,)).recomputes(part) for part in PARTS)
    some = Layout(mesh=mesh, recomputed=("attention",))
    assert [part for part in PARTS if some.recomputes(part)] == ["attention"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"zero": 4}, "zero 4 is not a stage of ZeRO"),
        ({"micro_batch": 0}, "micro_batch 0 is below 1"),
        ({"offload_layers": 0}, "offload_layers 0 is below 1"),
        ({"schedule": "1f2b"}, 'unknown schedule "1f2b". Close: "1f1b"'),
        ({"recomputed": ("layr",)}, 'unknown recomputed part "layr". Close: "layer"'),
        ({"recomputed": ("mlp",)}, 'unknown recomputed part "mlp"'),
        ({"offload": ("state",)}, 'unknown offload "state"'),
        ({"overlap": ("grads",)}, 'unknown overlap "grads". Close: "grad_reduce"'),
        ({"schedule": "1f1b"}, 'pipe 1 has no use for schedule "1f1b"'),
        ({"mesh": Mesh(pipe=2)}, "pipe 2 needs a schedule"),
        ({"mesh": Mesh(pipe=2), "schedule": "1f1b", "virtual": 2}, "virtual 2 under schedule"),
        ({"mesh": Mesh(pipe=2), "schedule": "interleaved"}, "virtual 1 under schedule"),
        ({"mesh": Mesh(fsdp=2), "zero": 2}, "fsdp 2 with zero 2"),
        ({"sequence_parallel": True}, "sequence_parallel with tensor 1"),
        ({"mesh": Mesh(tensor=4), "expert_tensor": 3}, "expert_tensor 3 does not divide tensor 4"),
        ({"recomputed": (LAYER, "q")}, "recomputed layer, q: layer is all parts"),
        ({"remat_layers": 3}, "remat_layers 3 with remat none"),
        ({"offload_layers": 3}, "offload_layers 3 with nothing to offload"),
    ],
)
def test_a_layout_that_cannot_be(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(BadShape) as caught:
        Layout(**{"mesh": Mesh(), **changes})
    assert words in str(caught.value)


def test_all_problems_at_once() -> None:
    with pytest.raises(BadShape) as caught:
        Layout(mesh=Mesh(fsdp=2, pipe=2), virtual=2, sequence_parallel=True, remat_layers=1)
    assert len(caught.value.problems) == 5


@settings(max_examples=50, derandomize=True)
@given(*[st.integers(1, 8)] * 5)
def test_the_batch_is_its_factors(micro: int, n: int, data: int, fsdp: int, expert: int) -> None:
    mesh = Mesh(data=data, fsdp=fsdp, expert=expert, context=2)
    layout = Layout(mesh=mesh, zero=3, micro_batch=micro, n_microbatches=n)
    assert layout.global_batch * mesh.context == micro * n * mesh.n_chips
