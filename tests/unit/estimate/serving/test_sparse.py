"""Sparse attention over a latent cache, and experts that are not equally popular."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import shardwise as sw
from shardwise.estimate.serving.attention import attention_time
from shardwise.estimate.serving.engine import Engine
from shardwise.estimate.serving.load import Load
from shardwise.estimate.serving.memory import cache_bytes
from shardwise.estimate.serving.pass_time import active_experts, layer_matmuls
from shardwise.estimate.serving.sparse import INDEX_KEY_BYTES, is_sparse
from shardwise.formulas.experts import busiest_share, hit_share, skewed_hit_share
from shardwise.models import ModelConfig, Moe
from shardwise.search.given import fixed_of
from shardwise.search.serving.rank import Request, rank
from shardwise.strategy.mesh import Mesh
from shardwise.strategy.serving_layout import ServeForm, ServeLayout

DENSE = sw.model("deepseek-v3")
WINDOW = 2048
JOB = sw.Serve(context=8192, weights="fp8", compute="fp8")


def with_window(config: ModelConfig, window: int | None) -> ModelConfig:
    groups = []
    for group in config.groups:
        assert group.layer.attention
        attention = replace(group.layer.attention, window=window)
        groups.append(replace(group, layer=replace(group.layer, attention=attention)))
    return replace(config, groups=tuple(groups))


SPARSE = with_window(DENSE, WINDOW)


def corrected(config: ModelConfig) -> ModelConfig:
    """The model with routers whose bias corrects for load."""
    groups = []
    for group in config.groups:
        assert isinstance(group.layer.ffn, Moe)
        routing = replace(group.layer.ffn.routing, correction=True)
        ffn = replace(group.layer.ffn, routing=routing)
        groups.append(replace(group, layer=replace(group.layer, ffn=ffn)))
    return replace(config, groups=tuple(groups))


def engine(config: ModelConfig, tensor: int) -> Engine:
    fixed = fixed_of({"tensor": tensor, "expert": 1, "pipe": 1, "fsdp": 1})
    system = sw.hardware(f"h200:{tensor}")
    request = Request(config=config, hardware=system, jobs=[JOB], fixed=fixed, disaggregate=False)
    return rank(request, 0).candidates[0].server.engine


def test_only_latent_attention_with_a_window_is_sparse() -> None:
    assert all(is_sparse(attention) for attention, _ in SPARSE.attentions)
    assert not any(is_sparse(attention) for attention, _ in DENSE.attentions)
    assert not any(is_sparse(a) for a, _ in sw.model("gemma3-27b").attentions)


def test_fewer_heads_than_a_tile_has_rows_save_nothing() -> None:
    """128 heads on 8 and on 16 chips are 16 and 8 rows of a tile of 64."""
    prompts = Load(prefill_tokens=8192, query_key_pairs=8192 * 8193 / 2)
    eight, sixteen = (attention_time(engine(SPARSE, n), prompts).prefill_s for n in (8, 16))
    assert float(eight) == pytest.approx(float(sixteen))
    eight, sixteen = (attention_time(engine(DENSE, n), prompts).prefill_s for n in (8, 16))
    assert float(eight) == pytest.approx(2 * float(sixteen))


def test_index_keys_are_read_for_the_whole_context() -> None:
    """From 8k to 64k tokens, queries choose as many keys, but read eight times the index."""
    sparse = engine(SPARSE, 8)
    near, far = (
        float(attention_time(sparse, Load(n_decoding=8, kv_tokens=8.0 * n)).decode_s)
        for n in (8192, 65536)
    )
    assert far > near


def test_all_keys_and_those_of_the_index_stay_in_memory() -> None:
    sizes = {"data": 1, "fsdp": 1, "tensor": 8, "context": 1, "expert": 1, "pipe": 1}
    dense = cache_bytes(DENSE, ServeForm(), sizes, JOB)
    sparse = cache_bytes(SPARSE, ServeForm(), sizes, JOB)
    index = DENSE.n_layers * INDEX_KEY_BYTES * JOB.context
    assert float(sparse - dense) == pytest.approx(index)


def test_popular_experts_leave_others_unread() -> None:
    assert skewed_hit_share(128, 8, 1) == pytest.approx(hit_share(128, 8, 1), rel=0.1)
    for tokens in (8, 32, 128):
        assert skewed_hit_share(128, 8, tokens) < 0.95 * hit_share(128, 8, tokens)
    assert skewed_hit_share(128, 8, 1e6) == pytest.approx(1.0)
    assert skewed_hit_share(128, 8, 32, 0.0) == pytest.approx(hit_share(128, 8, 32))


@pytest.mark.parametrize(("experts", "shards"), [(128, 2), (128, 8), (512, 8), (256, 64)])
def test_the_busiest_of_random_chips(experts: int, shards: int) -> None:
    """Experts of Zipf's popularity, divided among chips 2,000 times; the formula is a fit."""
    rng = np.random.default_rng(0)
    classes = np.arange(16) + 0.5
    popularity = np.repeat(1 / classes, experts // 16)
    loads = rng.permuted(np.tile(popularity, (2000, 1)), axis=1).reshape(2000, shards, -1).sum(2)
    busiest = float((loads.max(1) / loads.mean(1)).mean())
    assert busiest_share(experts, shards) == pytest.approx(busiest, rel=0.05)
    assert busiest_share(experts, 1) == 1
    assert busiest_share(8, 8) == 1  # few experts are about equally popular


def test_chips_wait_for_the_one_with_popular_experts() -> None:
    qwen = sw.model("qwen3-235b-a22b")

    def flops_per_s(config: ModelConfig, role: str) -> float:
        served = replace(engine(config, 8), layout=ServeLayout(mesh=Mesh(**{role: 8})))
        items = layer_matmuls(served, Load(prefill_tokens=8192.0, query_key_pairs=1.0))
        return next(float(item.flops_per_s) for item in items if item.name == "moe.gate")

    even = flops_per_s(corrected(qwen), "expert")
    assert flops_per_s(qwen, "expert") == pytest.approx(even / busiest_share(128, 8))
    assert flops_per_s(qwen, "tensor") == flops_per_s(corrected(qwen), "tensor")


def test_routers_that_correct_for_load_are_even() -> None:
    even = active_experts(engine(DENSE, 8), 256, 8, 32)
    assert DENSE.moe
    assert DENSE.moe.routing.correction
    assert even == hit_share(256, 8, 32)
    qwen = sw.model("qwen3-235b-a22b")
    assert active_experts(engine(qwen, 4), 128, 8, 32) == skewed_hit_share(128, 8, 32)
