"""Efficiently Scaling Transformer Inference, and Transformer Inference Arithmetic."""

from __future__ import annotations

from shardwise.book.givens import SIDE, dense
from shardwise.book.registry import Answer, Given, solves
from shardwise.formulas import inference, roofline, stationary
from shardwise.models import ModelConfig, count
from shardwise.units import GiB


def _cache(n_layers: int, heads: int, d_head: int, element_bytes: float = 2.0) -> float:
    """KV bytes per token."""
    model = dense({"L": n_layers, "D": SIDE, "F": SIDE, "N": heads, "K": heads, "H": d_head})
    return float(count.kv_bytes_per_token(model, element_bytes))


@solves("esti-context-mha", by="S = share HBM / (2 L N H e B)")
def longest_context(g: Given) -> Answer:
    hbm = g["chips"] * g["hbm_gib"] * GiB
    token = _cache(g["L"], g["heads"], g["d_head"])
    return [inference.max_context(hbm, token, b, share=g["share"]) for b in g["batch"]]


@solves("esti-context-gain", by="N H / (K H) of the two caches")
def context_gain(g: Given) -> Answer:
    many, one = (inference.max_context(1.0, _cache(g["L"], *g[k]), 1) for k in ("mha", "mqa"))
    return one / many


@solves("esti-kv-3tb", by="2 L N H e B S")
def cache(g: Given) -> Answer:
    return g["batch"] * g["context"] * _cache(g["L"], g["heads"], g["d_head"])


@solves("esti-2d-ws", by="8BD/(sqrt(N) W) / (4BD/W); equal at 8 / sqrt(N) = 4")
def two_dims(g: Given) -> Answer:
    two, one = stationary.papers_2d_s(1, 1, g["n"], 1), stationary.papers_1d_s(1, 1, 1)
    return [two / one, stationary.papers_2d_chips()]


@solves("kipply-kv-52b", by="2 e L N H")
def cache_52b(g: Given) -> Answer:
    return _cache(g["L"], g["heads"], g["d_head"], g["bytes_per_elem"])


@solves("kipply-params", by="12 L D^2: 4D^2 of attention and 2D * 4D of MLP a layer")
def parameters(g: Given) -> Answer:
    d_model = g["d_model"]
    parts = count.parameters(
        ModelConfig.dense(
            n_layers=g["L"],
            d_model=d_model,
            d_ff=4 * d_model,
            n_heads=1,
            vocab=SIDE,
            gated=False,
        )
    )
    return parts.attention + parts.mlp


@solves("kipply-a100-intensity", by="C / W_hbm")
def balance(g: Given) -> Answer:
    return roofline.critical_batch(g["flops"], g["hbm"])


@solves("kipply-latency-4gpu", by="P e / (N W_hbm); messages * L * 8 us")
def small_batch(g: Given) -> Answer:
    read = inference.weight_read_s(
        g["params"], g["bytes_per_elem"], n_chips=g["gpus"], hbm_bytes_per_s=g["hbm"]
    )
    return [read, inference.message_latency_s(g["L"], g["msgs"], g["lat"])]
