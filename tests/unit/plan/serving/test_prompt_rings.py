"""Collectives of prompts whose tokens `tensor` shards between blocks."""

from __future__ import annotations

import pytest

import shardwise as sw
from shardwise.ops.forward import shards_tokens
from shardwise.plan.schema.serving import ServingPlan

ONE = dict.fromkeys(("data", "fsdp", "tensor", "context", "expert", "pipe"), 1)


def plan(model: str, hardware: str, dtype: str = "bf16", context: int = 8192) -> ServingPlan:
    job = sw.Serve(context=context, batch=8, weights=dtype, kv=dtype, compute=dtype)
    system = sw.hardware(hardware)
    planned = sw.plan(sw.model(model), system, job, {"tensor": system.n_chips}, peak=True)
    assert isinstance(planned, ServingPlan)
    return planned


def sent(planned: ServingPlan, phase: str = "prefill") -> dict[str, float]:
    """Kind of collective -> bytes that a chip receives over `tensor`."""
    received: dict[str, float] = {}
    for op in planned.operations:
        if op.phase == phase and op.role == "tensor":
            kind = str(op.collective)
            received[kind] = received.get(kind, 0.0) + op.network_bytes
    return received


@pytest.mark.parametrize(("dtype", "gathered"), [("bf16", 2.0), ("int8", 1.0)])
def test_a_ring_gathers_tokens_and_sums_outputs(dtype: str, gathered: float) -> None:
    planned = plan("llama3-8b,n_layers=4", "v5e:2x2", dtype)
    n_chips, n_layers = 4, 4
    elements = 8192 * 4096 * (n_chips - 1) / n_chips
    assert sent(planned) == pytest.approx(
        {
            "permute": 2 * n_layers * elements * (gathered + 2.0),
            "reduce_scatter": elements * 2.0,
        }
    )
    (ring,) = {op.count for op in planned.operations if op.collective == "permute"}
    assert ring == n_layers * 2 * (n_chips - 1)  # of each block
    assert set(sent(planned, "decode")) == {"all_reduce"}


@pytest.mark.parametrize(
    ("model", "hardware", "context"),
    [
        ("llama3-8b,n_layers=4", "h100:4", 8192),
        ("llama3-8b,n_layers=4", "v5e:2x2", 512),
        ("qwen3-30b-a3b,n_layers=2", "v5e:2x2", 8192),
    ],
)
def test_others_reduce_the_sums_of_all_tokens(model: str, hardware: str, context: int) -> None:
    assert set(sent(plan(model, hardware, context=context))) == {"all_reduce"}


def test_layouts_that_shard_tokens() -> None:
    dense = sw.model("llama3-8b")
    assert shards_tokens(dense, ONE | {"tensor": 4}, 1024)
    assert not shards_tokens(dense, ONE | {"tensor": 4}, 1023)
    assert not shards_tokens(dense, ONE | {"tensor": 4}, 512)
    assert not shards_tokens(dense, ONE, 8192)
    for role in ("fsdp", "context", "expert", "pipe"):
        assert not shards_tokens(dense, ONE | {"tensor": 4, role: 2}, 8192)
    assert shards_tokens(dense, ONE | {"tensor": 4, "data": 2}, 8192)
    for model in ("qwen3-30b-a3b", "deepseek-v2-lite", "falcon-40b"):
        assert not shards_tokens(sw.model(model), ONE | {"tensor": 4}, 8192)
