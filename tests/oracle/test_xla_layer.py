"""One layer forward and backward: what the planner derives against what XLA compiles and computes.

Both read the same table of rules. Kinds, mesh axes, bytes and counts of the collectives are the
same, but for these:

- A gathered weight, or gathered keys and values, stays for the backward pass in XLA; the planner
  frees it and gathers it again.
- The gradients of q, k, v and of gate, up towards their shared input are scattered one by one; the
  planner adds them first, which needs one scatter for each block.
- The loss is a sum over all tokens, 4 bytes.
- Full remat: XLA does not run the last projection again, whose output nothing reads.
- A mesh with context and tensor but no fsdp: see the test of its own.
"""

from __future__ import annotations

import functools
from collections import Counter
from typing import Any

import pytest

from shardwise.models import ModelConfig
from shardwise.models.count import mean_visible
from shardwise.ops.program import Matmul, Step, Transfer, training_step
from shardwise.strategy.rules import TRAIN, only
from tests.oracle import transformer, xla
from tests.oracle.hlo import Collective, Mesh, Module

pytestmark = pytest.mark.oracle

CONFIG = ModelConfig.dense(
    n_layers=1, d_model=64, d_ff=96, n_heads=8, n_kv_heads=4, d_head=16, vocab=128
)
BATCH, SEQ = 8, 40
RESIDUAL_BYTES = BATCH * SEQ * CONFIG.d_model * xla.F32
# Terms that read the gathered input of their block, beyond the first of each block.
MORE_READERS = ("attn.k", "attn.v", "mlp.up")
CORE = ("attn.scores", "attn.values")
# Products that enter the residual stream, and the phase in which they do.
INTO_RESIDUAL = {
    "attn.out": "forward",
    "mlp.down": "forward",
    **{f"{name}.d_x": "backward" for name in ("attn.q", "mlp.gate", *MORE_READERS)},
}
# Sums of activations in another order; f32 has 24 bits.
TOLERANCE = 2e-5

MESHES: list[Mesh] = [
    {"fsdp": 2, "tensor": 4},
    {"data": 2, "fsdp": 2, "tensor": 2},
    {"fsdp": 2, "context": 2, "tensor": 2},
    {"data": 2, "fsdp": 2, "context": 2},
    {"fsdp": 2, "context": 4},
    {"data": 2, "tensor": 4},
    {"fsdp": 8},
    {"tensor": 4},
    {"context": 2},
]


def spread(mesh: Mesh) -> str:
    return " x ".join(f"{axis}{size}" for axis, size in mesh.items())


def key(mesh: Mesh) -> tuple[tuple[str, int], ...]:
    return tuple(mesh.items())


@functools.cache
def compiled(mesh: tuple[tuple[str, int], ...], remat: bool = False) -> Any:
    jax = xla.load()
    arrays = jax.eval_shape(lambda: transformer.random(CONFIG, BATCH, SEQ))
    return transformer.gradients(CONFIG, dict(mesh), remat=remat).lower(*arrays).compile()


def module(mesh: Mesh, *, remat: bool = False) -> Module:
    return xla.read(compiled(key(mesh), remat))


def step(mesh: Mesh, remat: str = "none") -> Step:
    return training_step(CONFIG, BATCH, SEQ, only(TRAIN, mesh), remat=remat)


def of_layer(works: tuple[Any, ...]) -> list[Any]:
    return [w for w in works if w.name.startswith(("attn.", "mlp."))]


def square_flops(matmul: Matmul, mesh: Mesh) -> int:
    """FLOPs when the whole square of scores is computed, as plain JAX does."""
    return int(matmul.program.local_flops(matmul.sizes, mesh))


def count(transfers: list[Transfer], mesh: Mesh) -> Counter[Collective]:
    return Counter(
        Collective(
            t.move.kind,
            tuple(a for a in mesh if a in t.move.axes),
            int(t.elements(mesh) * xla.F32),
        )
        for t in transfers
    )


def gathered_again(transfer: Transfer) -> bool:
    """The backward pass gathers a weight, keys or values that the forward pass gathered."""
    of_gradient = transfer.move.before.name.startswith("d")
    return transfer.phase == "backward" and transfer.move.kind == "all_gather" and not of_gradient


def input_scatters(mesh: Mesh, n: int) -> Counter[Collective]:
    """Reduce-scatters of `n` gradients of a block's input."""
    sequences = mesh.get("data", 1) * mesh.get("fsdp", 1) * mesh.get("context", 1)
    one = Collective("reduce_scatter", ("tensor",), RESIDUAL_BYTES // sequences)
    return Counter({one: n} if "tensor" in mesh else {})


def split_loss(found: Counter[Collective]) -> tuple[Counter[Collective], set[str]]:
    """(everything but the sum of the loss, the mesh axes that the loss was summed over)."""
    loss = [c for c in found if c.kind == "all_reduce" and c.n_bytes == xla.F32]
    rest = Counter({c: n for c, n in found.items() if c not in loss})
    return rest, {axis for c in loss for axis in c.axes}


@pytest.mark.parametrize("mesh", MESHES, ids=spread)
def test_flops_of_the_matmuls_are_equal(mesh):
    matmuls = of_layer(step(mesh).matmuls)
    assert module(mesh).dot_flops() == sum(square_flops(m, mesh) for m in matmuls)


def test_the_planner_counts_the_visible_part_of_the_square():
    mesh = MESHES[0]
    matmuls = of_layer(step(mesh).matmuls)
    core = sum(square_flops(m, mesh) for m in matmuls if m.name.startswith(CORE))
    visible = mean_visible(CONFIG.main_layer.attention, SEQ) / SEQ
    planned = sum(m.flops(mesh) for m in matmuls)
    assert visible == 0.5  # the book's half of the square
    assert module(mesh).dot_flops() - planned == pytest.approx((1 - visible) * core, rel=1e-12)


@pytest.mark.parametrize("mesh", MESHES, ids=spread)
def test_collectives_are_equal_but_for_what_is_expected(mesh):
    planned = of_layer(step(mesh).transfers)
    again = [t for t in planned if gathered_again(t)]
    found, over = split_loss(module(mesh).collectives(mesh))
    more = input_scatters(mesh, len(MORE_READERS))
    assert found == count(planned, mesh) - count(again, mesh) + more
    assert over == set(mesh)
    assert bool(again) == bool({"fsdp", "context"} & set(mesh))


def test_full_remat_runs_and_gathers_again_what_xla_does():
    mesh = MESHES[0]
    works = step(mesh, "full")
    planned = sum(square_flops(m, mesh) for m in of_layer(works.matmuls))
    assert module(mesh, remat=True).dot_flops() == planned
    transfers = of_layer(works.transfers)
    found, _ = split_loss(module(mesh, remat=True).collectives(mesh))
    more = input_scatters(mesh, len(MORE_READERS))
    assert found == count(transfers, mesh) + more


@pytest.mark.parametrize(
    "mesh",
    [{"context": 2, "tensor": 4}, {"data": 2, "context": 2, "tensor": 2}],
    ids=spread,
)
def test_context_and_tensor_without_fsdp_make_xla_work_twice(mesh):
    """Where a product becomes residual, XLA gathers its left side over the sequence.

    Every chip along `context` then computes the same, and an all-reduce and a slice stand where
    the planner has a reduce-scatter. With fsdp in the mesh XLA does as the planner.
    """
    works = step(mesh)
    matmuls, transfers = of_layer(works.matmuls), of_layer(works.transfers)
    doubled = [m for m in matmuls if m.name in INTO_RESIDUAL and m.phase == INTO_RESIDUAL[m.name]]
    assert len(doubled) == len(INTO_RESIDUAL)
    planned = sum(square_flops(m, mesh) for m in matmuls)
    extra = sum(square_flops(m, mesh) for m in doubled)
    assert module(mesh).dot_flops() == planned + extra

    found, _ = split_loss(module(mesh).collectives(mesh))
    scattered = input_scatters(mesh, len(INTO_RESIDUAL) - len(MORE_READERS))
    sums = Collective("all_reduce", ("tensor",), RESIDUAL_BYTES // mesh.get("data", 1))
    # Here it gathers the weights again too, so only keys and values are kept.
    kept = [t for t in transfers if gathered_again(t) and not t.move.before.name.startswith("w")]
    expected = count(transfers, mesh) - count(kept, mesh) - scattered
    expected += Counter(gathered_left(m, mesh) for m in doubled) + Counter({sums: len(doubled)})
    assert found == expected


def gathered_left(matmul: Matmul, mesh: Mesh) -> Collective:
    """An AllGather over `context` of the left side of a local product."""
    left = matmul.program.local.left.local_elements(matmul.sizes, mesh)
    return Collective("all_gather", ("context",), int(left * mesh["context"] * xla.F32))


@functools.cache
def on_one_device() -> Any:
    made = transformer.random(CONFIG, BATCH, SEQ)
    return made, transformer.gradients(CONFIG, None)(*made)


@pytest.mark.parametrize("mesh", MESHES, ids=spread)
def test_loss_and_gradients_are_those_of_one_device(mesh):
    import numpy as np

    jax = xla.load()
    (w, x, dy), expected = on_one_device()
    got = transformer.gradients(CONFIG, mesh)(w, x, dy)
    for one, other in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        scale = float(abs(other).max())
        np.testing.assert_allclose(one, other, rtol=0, atol=TOLERANCE * scale)
