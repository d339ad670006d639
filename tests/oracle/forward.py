"""A Transformer in NumPy, from a ModelConfig and weights under our names: the slow, plain way.

Letters: T tokens, S keys, D width, N query heads, K key heads, H head width, E experts, V words.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.models import Attention, Layer, Mlp, ModelConfig, Moe, Norm, Rope, stack
from shardwise.models.stack import unrolled

Array = NDArray[np.float64]
Weights = dict[str, Array]


def logits(
    config: ModelConfig, outer: Weights, layers: list[Weights], tokens: NDArray[np.int64]
) -> Array:
    """Logits [T, V] of one sequence."""
    x_TD = outer["embedding"][tokens]
    if config.scaled_embeddings:
        x_TD = x_TD * math.sqrt(config.d_model)
    x_TD = x_TD * config.embedding_scale
    if config.n_positions:
        x_TD = x_TD + outer["position"][: len(tokens)]
    for kind, w in zip(unrolled(stack(config)), layers, strict=True):
        x_TD = through(config, config.groups[kind].layer, w, x_TD)
    x_TD = norm(config.norm, outer, "final_norm", x_TD)
    unembedding = outer["embedding"].T if config.tied_embeddings else outer["unembedding"]
    z_TV = x_TD @ unembedding + outer.get("b_unembedding", 0.0)
    return capped(z_TV * config.logit_scale, config.logit_softcap)


def through(config: ModelConfig, layer: Layer, w: Weights, x_TD: Array) -> Array:
    def mixed(x: Array) -> Array:
        return attend(config, layer.attention, w, x)

    def fed(x: Array) -> Array:
        return routed(layer.ffn, w, x) if isinstance(layer.ffn, Moe) else mlp(layer.ffn, w, x)

    def normed(name: str, x: Array) -> Array:
        return norm(config.norm, w, name, x)

    pre, post = layer.norms != "post", layer.norms in ("post", "both")
    ffn_norm = "attention_norm" if layer.norms == "shared" else "ffn_norm"
    mixer_out = mixed(normed("attention_norm", x_TD) if pre else x_TD)
    if post:
        mixer_out = normed("post_attention_norm", mixer_out)
    y_TD = x_TD + config.residual_scale * mixer_out
    read = x_TD if layer.parallel else y_TD
    ffn_out = fed(normed(ffn_norm, read) if pre else read)
    return y_TD + config.residual_scale * (normed("post_ffn_norm", ffn_out) if post else ffn_out)


def norm(
    kind: Norm, w: Weights, name: str, x: Array, eps: float | None = None, dims: int = 1
) -> Array:
    """Over the last `dims` dims of x; some norms have no scale."""
    scale = w[name] + kind.plus_one if name in w else 1.0
    axes = tuple(range(-dims, 0))
    if kind.kind == "layer":
        x = x - x.mean(axes, keepdims=True)
    x = x / np.sqrt((x * x).mean(axes, keepdims=True) + (eps or kind.eps))
    return x * scale + w.get(f"b_{name}", 0.0)


def capped(x: Array, cap: float | None) -> Array:
    return cap * np.tanh(x / cap) if cap else x


def attend(config: ModelConfig, a: Attention, w: Weights, x_TD: Array) -> Array:
    q_TNH, k_SNH, v_SNH = latent(config, a, w, x_TD) if a.mla else projected(config, a, w, x_TD)
    T = len(x_TD)
    scores_NTS = np.einsum("tnh,snh->nts", q_TNH, k_SNH)
    if a.alibi:
        scores_NTS = scores_NTS + slopes(a.n_heads)[:, None, None] * np.arange(T)
    scores_NTS = capped(scores_NTS * a.score_scale, a.softcap)
    scores_NTS = np.where(seen(a, T), scores_NTS, -np.inf)
    if a.sinks:
        sinks = np.broadcast_to(w["sinks"][:, None, None], (a.n_heads, T, 1))
        scores_NTS = np.concatenate([scores_NTS, sinks], axis=-1)
    probs_NTS = softmax(scores_NTS)[..., :T]
    out_TNH = np.einsum("nts,snh->tnh", probs_NTS, v_SNH)
    return np.einsum("tnh,nhd->td", out_TNH, w["wo"]) + w.get("bo", 0.0)


def projected(config: ModelConfig, a: Attention, w: Weights, x_TD: Array) -> tuple[Array, ...]:
    q, k, v = (np.einsum("td,dnh->tnh", x_TD, w[f"w{x}"]) + w.get(f"b{x}", 0.0) for x in "qkv")
    if a.qk_norm:
        dims = 2 if a.qk_norm == "full" else 1
        q = norm(config.norm, w, "q_norm", q, dims=dims)
        k = norm(config.norm, w, "k_norm", k, dims=dims)
    if a.clip:
        q, k, v = (np.clip(x, -a.clip, a.clip) for x in (q, k, v))
    if a.rope:
        q, k = turned(a.rotary, q), turned(a.rotary, k)
    if a.qk_unit:
        q, k = (x / np.sqrt((x * x).mean(-1, keepdims=True) + config.norm.eps) for x in (q, k))
    if a.temperature:
        t = np.floor((np.arange(len(q)) + 1) / a.temperature.floor)
        q = q * (1 + a.temperature.scale * np.log1p(t))[:, None, None]
    groups = a.n_heads // a.n_kv_heads
    return q, np.repeat(k, groups, axis=1), np.repeat(v, groups, axis=1)


def latent(config: ModelConfig, a: Attention, w: Weights, x_TD: Array) -> tuple[Array, ...]:
    mla = a.mla
    if mla.q_lora_rank:
        low = norm(config.norm, w, "q_norm", x_TD @ w["w_dq"] + w.get("b_dq", 0.0), mla.norm_eps)
        q_TNH = np.einsum("tq,qnh->tnh", low, w["w_uq"])
    else:
        q_TNH = np.einsum("td,dnh->tnh", x_TD, w["wq"])
    down = x_TD @ w["w_dkv"] + w.get("b_dkv", 0.0)
    low = norm(config.norm, w, "kv_norm", down[:, : mla.kv_lora_rank], mla.norm_eps)
    k_rope = np.repeat(turned(a.rotary, down[:, None, mla.kv_lora_rank :]), a.n_heads, axis=1)
    k_nope = np.einsum("tc,cnh->tnh", low, w["w_uk"])
    q_rope = turned(a.rotary, q_TNH[..., mla.d_nope :])
    q_TNH = np.concatenate([q_TNH[..., : mla.d_nope], q_rope], axis=-1)
    k_TNH = np.concatenate([k_nope, k_rope], axis=-1)
    return q_TNH, k_TNH, np.einsum("tc,cnh->tnh", low, w["w_uv"])


def turned(rope: Rope, x_TNH: Array) -> Array:
    dims = rope.dims or x_TNH.shape[-1]
    angles = np.arange(len(x_TNH))[:, None, None] * frequencies(rope, dims, len(x_TNH))
    gain = rope.scaling.attention_factor if rope.scaling else 1.0
    cos, sin = gain * np.cos(angles), gain * np.sin(angles)
    first, second = slice(0, dims // 2), slice(dims // 2, dims)
    if rope.interleaved:
        first, second = slice(0, dims, 2), slice(1, dims, 2)
    out = x_TNH.copy()
    out[..., first] = x_TNH[..., first] * cos - x_TNH[..., second] * sin
    out[..., second] = x_TNH[..., second] * cos + x_TNH[..., first] * sin
    return out


def frequencies(rope: Rope, dims: int, T: int) -> Array:
    s, exponents = rope.scaling, np.arange(0, dims, 2) / dims
    plain = rope.theta**-exponents
    if s is None:
        return plain
    if s.kind == "linear":
        return plain / s.factor
    if s.kind == "dynamic":
        longer = s.factor * max(T, s.original) / s.original - (s.factor - 1)
        return (rope.theta * longer ** (dims / (dims - 2))) ** -exponents
    if s.kind == "longrope":
        return plain / np.array(s.long if s.original < T else s.short)
    if s.kind == "llama3":
        turns = s.original * plain / (2 * math.pi)
        kept = np.clip((turns - s.low_freq) / (s.high_freq - s.low_freq), 0, 1)
    else:
        kept = 1 - yarn_ramp(rope, dims)
    return plain / s.factor * (1 - kept) + plain * kept


def yarn_ramp(rope: Rope, dims: int) -> Array:
    def dim_of(turns: float) -> float:
        s = rope.scaling
        return dims * math.log(s.original / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = dim_of(rope.scaling.beta_fast), dim_of(rope.scaling.beta_slow)
    if rope.scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    return np.clip((np.arange(dims // 2) - low) / max(high - low, 1e-3), 0, 1)


def seen(a: Attention, T: int) -> NDArray[np.bool_]:
    t, s = np.arange(T)[:, None], np.arange(T)
    allowed = s <= t
    if a.window:
        near = t // a.window == s // a.window if a.chunked else t - s < a.window
        allowed = allowed & near
    return allowed


def slopes(n: int) -> Array:
    """A power of two of heads: 2^(-8 i / n)."""
    return 2.0 ** (-8 * np.arange(1, n + 1) / n)


def softmax(x: Array) -> Array:
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def gelu(x: Array) -> Array:
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


ACTIVATIONS: dict[str, Any] = {
    "silu": lambda x: x * sigmoid(x),
    "gelu": gelu,
    "gelu_tanh": lambda x: x * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu_quick": lambda x: x * sigmoid(1.702 * x),
    "relu": lambda x: np.maximum(x, 0),
    "relu2": lambda x: np.maximum(x, 0) ** 2,
}


def mlp(ffn: Mlp, w: Weights, x_TD: Array) -> Array:
    act, up = ACTIVATIONS[ffn.activation], x_TD @ w["w_up"] + w.get("b_up", 0.0)
    hidden = act(x_TD @ w["w_gate"] + w.get("b_gate", 0.0)) * up if ffn.gated else act(up)
    return hidden @ w["w_down"] + w.get("b_down", 0.0)


def routed(moe: Moe, w: Weights, x_TD: Array) -> Array:
    weights_TE = route(moe, w, x_TD)
    out = np.zeros_like(x_TD)
    for e in range(moe.n_experts):
        share = weights_TE[:, e, None]
        read = x_TD * share if moe.routing.on_input else x_TD
        written = expert(moe, {k: v[e] for k, v in w.items() if k[:2] in ("w_", "b_")}, read)
        written = np.where(share > 0, written, 0.0)
        out += written if moe.routing.on_input else share * written
    if moe.d_ff_shared:
        hidden = ACTIVATIONS[moe.activation](x_TD @ w["shared_gate"]) * (x_TD @ w["shared_up"])
        shared = hidden @ w["shared_down"]
        out += sigmoid(x_TD @ w["shared_scale"])[:, None] * shared if moe.shared_gate else shared
    return out


def expert(moe: Moe, w: Weights, x_TD: Array) -> Array:
    gate = x_TD @ w["w_gate"] + w.get("b_gate", 0.0)
    up = x_TD @ w["w_up"] + w.get("b_up", 0.0)
    if moe.clamp:
        gate, limit = np.minimum(gate, moe.clamp.limit), moe.clamp.limit
        hidden = gate * sigmoid(moe.clamp.alpha * gate) * (np.clip(up, -limit, limit) + 1)
    else:
        hidden = ACTIVATIONS[moe.activation](gate) * up
    return hidden @ w["w_down"] + w.get("b_down", 0.0)


def route(moe: Moe, w: Weights, x_TD: Array) -> Array:
    """Weights of experts [T, E], zero for those that a token does not use."""
    r = moe.routing
    z_TE = x_TD @ w["router"] + w.get("b_router", 0.0)
    scores = softmax(z_TE) if r.score == "softmax" else sigmoid(z_TE)
    choice = scores + w["router_correction"] if r.correction else scores
    if r.n_groups > 1:
        grouped = choice.reshape(len(choice), r.n_groups, -1)
        worth = np.sort(grouped, axis=-1)[..., -r.group_best :].sum(-1)
        allowed = worth >= np.sort(worth, axis=-1)[:, -r.top_groups, None]
        choice = np.where(allowed[..., None], grouped, -np.inf).reshape(choice.shape)
    used = choice >= np.sort(choice, axis=-1)[:, -moe.experts_per_token, None]
    weights = np.where(used, scores, 0.0)
    if r.normalized:
        weights = weights / weights.sum(-1, keepdims=True)
    return weights * r.scale
