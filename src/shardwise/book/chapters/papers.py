"""Efficiently Scaling Transformer Inference, and Transformer Inference Arithmetic."""

from __future__ import annotations

from shardwise.book.givens import UNIT_DIM, column, dense
from shardwise.book.registry import Answer, Given, solves
from shardwise.formulas import inference, roofline, stationary
from shardwise.models import ModelConfig, count
from shardwise.units import GiB


def _kv_bytes(n_layers: int, heads: int, d_head: int, element_bytes: float = 2.0) -> float:
    """KV cache bytes per token of a model with `heads` KV heads of width `d_head`."""
    model = dense(
        {"L": n_layers, "D": UNIT_DIM, "F": UNIT_DIM, "N": heads, "K": heads, "H": d_head}
    )
    return float(count.kv_bytes_per_token(model, element_bytes))


@solves("esti-context-mha", formula="S = share HBM / (2 L N H e B)")
def longest_context(given: Given) -> Answer:
    hbm_bytes = given["chips"] * given["hbm_gib"] * GiB
    token_bytes = _kv_bytes(given["L"], given["heads"], given["d_head"])
    return inference.max_context(
        hbm_bytes, token_bytes, column(given["batch"]), share=given["share"]
    )


@solves("esti-context-gain", formula="N H / (K H) of the two caches")
def context_gain(given: Given) -> Answer:
    multi_head = inference.max_context(1.0, _kv_bytes(given["L"], *given["mha"]), 1)
    multi_query = inference.max_context(1.0, _kv_bytes(given["L"], *given["mqa"]), 1)
    return multi_query / multi_head


@solves("esti-kv-3tb", formula="2 L N H e B S")
def cache(given: Given) -> Answer:
    return (
        given["batch"] * given["context"] * _kv_bytes(given["L"], given["heads"], given["d_head"])
    )


@solves("esti-2d-ws", formula="8BD/(sqrt(N) W) / (4BD/W); equal at 8 / sqrt(N) = 4")
def two_dims(given: Given) -> Answer:
    ratio = stationary.pope_2d_s(1, 1, given["n"], 1) / stationary.pope_1d_s(1, 1, 1)
    return [ratio, stationary.pope_2d_chips()]


@solves("kipply-kv-52b", formula="2 e L N H")
def cache_52b(given: Given) -> Answer:
    return _kv_bytes(given["L"], given["heads"], given["d_head"], given["bytes_per_elem"])


@solves("kipply-params", formula="12 L D^2: 4D^2 of attention and 2D * 4D of MLP a layer")
def parameters(given: Given) -> Answer:
    d_model = given["d_model"]
    parts = count.parameters(
        ModelConfig.dense(
            n_layers=given["L"],
            d_model=d_model,
            d_ff=4 * d_model,
            n_heads=1,
            vocab=UNIT_DIM,
            gated=False,
        )
    )
    return parts.attention + parts.mlp


@solves("kipply-a100-intensity", formula="C / W_hbm")
def balance(given: Given) -> Answer:
    return roofline.critical_batch(given["flops"], given["hbm"])


@solves("kipply-latency-4gpu", formula="P e / (N W_hbm); messages * L * 8 us")
def small_batch(given: Given) -> Answer:
    read_s = inference.weight_read_s(
        given["params"],
        given["bytes_per_elem"],
        n_chips=given["gpus"],
        hbm_bytes_per_s=given["hbm"],
    )
    return [read_s, inference.message_latency_s(given["L"], given["msgs"], given["lat"])]
