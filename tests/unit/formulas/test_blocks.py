"""The derived costs of a block are the formulas of the book's tables."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.formulas.blocks import block_cost
from shardwise.models import ModelConfig, load
from shardwise.strategy.mesh import Mesh

B, D, F = 4096, 512, 2048
TWO = ModelConfig.dense(n_layers=3, d_model=D, d_ff=F, n_heads=8, vocab=64, gated=False)


@given(x=st.sampled_from([2, 4, 16]), y=st.sampled_from([2, 4, 8]))
def test_rows_of_the_table(x: int, y: int) -> None:
    data, fsdp, tensor, mixed = (
        block_cost(TWO, B, mesh)
        for mesh in (Mesh(data=x), Mesh(fsdp=x), Mesh(tensor=y), Mesh(fsdp=x, tensor=y))
    )
    assert (data["forward"].bytes, data["backward"].bytes) == (0, 8 * D * F)
    assert (fsdp["forward"].bytes, fsdp["backward"].bytes) == (4 * D * F, 8 * D * F)
    assert (tensor["forward"].bytes, tensor["backward"].bytes) == (4 * B * D, 4 * B * D)
    assert mixed["forward"].moved_bytes == {"fsdp": 4 * D * F / y, "tensor": 4 * B * D / x}
    assert mixed["backward"].moved_bytes == {"fsdp": 8 * D * F / y, "tensor": 4 * B * D / x}
    for cost, chips in ((data, x), (fsdp, x), (tensor, y), (mixed, x * y)):
        assert cost["forward"].flops == 4 * B * D * F / chips
        assert cost["backward"].flops == 8 * B * D * F / chips


def test_one_chip_sends_nothing() -> None:
    cost = block_cost(TWO, B, Mesh())
    assert cost["forward"].moved_bytes == {}
    assert cost["forward"].bytes == 0


def test_a_gate_adds_a_matrix() -> None:
    llama = load("llama3-70b")
    cost = block_cost(llama, B, Mesh(fsdp=8))
    assert cost["forward"].bytes == 6 * llama.d_model * llama.d_ff
    in_int8 = block_cost(llama, B, Mesh(fsdp=8), element_bytes=1)
    assert in_int8["forward"].bytes == 3 * llama.d_model * llama.d_ff


def test_attention_has_its_own_rows() -> None:
    llama = load("llama3-70b")
    D, N, K, H = llama.d_model, llama.n_heads, llama.n_kv_heads, llama.d_head
    cost = block_cost(llama, B, Mesh(data=8), block="attn")
    weights = 2 * D * (N + K) * H
    assert cost["backward"].bytes == 4 * weights
    # Projections, and scores over sequences of one token, which cost next to nothing.
    assert cost["forward"].flops == pytest.approx(2 * B * weights / 8, rel=1e-3)
