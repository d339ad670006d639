"""The weights of a model as descriptions: name, dims by letter, shape.

Letters are the book's: D model width, F feed-forward width, N query heads, K key/value heads,
H head width, V vocabulary, E experts. Latent attention adds Q query latent, C' key/value latent,
C = C' + d_rope, Hn = d_nope, Hv = d_v; P counts learned positions. If a model projects tokens to a
latent before its experts, C is the width of that latent. A Mamba block has N heads of width H, F
columns in its input projection, and a convolution of F' columns over W tokens.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from shardwise.models.config import Attention, Layer, Mamba, Mla, Mlp, Moe
from shardwise.models.model import ModelConfig

PARTS = ("attention", "mamba", "mlp", "moe", "norm", "embedding", "unembedding")


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """One array of parameters.

    Args:
        name: Name in einsums and in plans.
        dims: One letter per dim.
        shape: One size per dim.
        part: Part of the model in which it is counted, one of `PARTS`.
        is_matmul: Whether it is an operand of a matmul, with two FLOPs per parameter and token.
    """

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    part: str
    is_matmul: bool

    @property
    def size(self) -> int:
        """Number of parameters: the product of the shape."""
        return math.prod(self.shape)

    @property
    def per_expert(self) -> bool:
        """Whether every routed expert has its slice of the array; the router has none."""
        return len(self.dims) > 1 and self.dims[0] == "E"


@functools.lru_cache(maxsize=64)
def layer_weights(config: ModelConfig, layer: Layer) -> tuple[Weight, ...]:
    """Weights of one layer: mixer, feed-forward, norms."""
    D = config.d_model
    weights: list[Weight] = []
    if layer.attention:
        weights += _attention(D, layer.attention)
    if layer.mamba:
        weights += _mamba(D, layer.mamba)
    if isinstance(layer.ffn, Moe):
        weights += _moe(D, layer.ffn)
    elif layer.ffn:
        weights += _mlp(D, layer.ffn)
    return (*weights, *_norms(D, layer))


@functools.lru_cache(maxsize=64)
def outer_weights(config: ModelConfig) -> tuple[Weight, ...]:
    """Weights outside the layers: embeddings, final norm and unembedding.

    A model with tied embeddings has no weight `unembedding`.
    """
    D = config.d_model
    V = config.vocab
    P = config.n_positions
    weights = [_weight("embedding", "V D", (V, D), "embedding", is_matmul=False)]
    if P:
        weights.append(_weight("position", "P D", (P, D), "embedding", is_matmul=False))
    if config.final_norm and config.final_norm_scale:
        weights.append(_weight("final_norm", "D", (D,), "norm", is_matmul=False))
    if config.final_norm_bias:
        weights.append(_weight("b_final_norm", "D", (D,), "norm", is_matmul=False))
    if not config.tied_embeddings:
        weights.append(_weight("unembedding", "D V", (D, V), "unembedding"))
    if config.unembedding_bias:
        weights.append(_weight("b_unembedding", "V", (V,), "unembedding", is_matmul=False))
    return tuple(weights)


def model_weights(config: ModelConfig) -> tuple[tuple[Weight, int], ...]:
    """Every weight of the model, with the number of layers that have it (1 outside the layers)."""
    counted_weights = []
    for group in config.groups:
        for weight in layer_weights(config, group.layer):
            counted_weights.append((weight, group.count))
    return (*counted_weights, *((weight, 1) for weight in outer_weights(config)))


def _weight(
    name: str, dims: str, shape: tuple[int, ...], part: str, *, is_matmul: bool = True
) -> Weight:
    return Weight(name=name, dims=tuple(dims.split()), shape=shape, part=part, is_matmul=is_matmul)


def _vector(name: str, dims: str, shape: tuple[int, ...], part: str = "attention") -> Weight:
    return _weight(name, dims, shape, part, is_matmul=False)


def _attention(D: int, a: Attention) -> list[Weight]:
    if a.mla:
        return _latent_attention(D, a, a.mla)
    N = a.n_heads
    K = a.n_kv_heads
    H = a.d_head
    weights = [
        _weight("wq", "D N H", (D, N, H), "attention"),
        _weight("wk", "D K H", (D, K, H), "attention"),
        _weight("wv", "D K H", (D, K, H), "attention"),
        _weight("wo", "N H D", (N, H, D), "attention"),
    ]
    if a.q_bias:
        weights.append(_vector("bq", "N H", (N, H)))
    if a.kv_bias:
        weights += [_vector("bk", "K H", (K, H)), _vector("bv", "K H", (K, H))]
    if a.o_bias:
        weights.append(_vector("bo", "D", (D,)))
    if a.qk_norm == "head":
        weights += [_vector("q_norm", "H", (H,), "norm"), _vector("k_norm", "H", (H,), "norm")]
    if a.qk_norm in ("each", "full"):
        weights += [
            _vector("q_norm", "N H", (N, H), "norm"),
            _vector("k_norm", "K H", (K, H), "norm"),
        ]
    if a.sinks:
        weights.append(_vector("sinks", "N", (N,)))
    return weights


def _latent_attention(D: int, a: Attention, mla: Mla) -> list[Weight]:
    N = a.n_heads
    H = a.d_head
    Hn = mla.d_nope
    Hv = mla.d_v
    Q = mla.q_lora_rank
    latent = mla.kv_lora_rank
    C = latent + mla.d_rope
    weights = []
    if Q is None:
        weights.append(_weight("wq", "D N H", (D, N, H), "attention"))
    else:
        weights += [
            _weight("w_dq", "D Q", (D, Q), "attention"),
            _vector("q_norm", "Q", (Q,), "norm"),
            _weight("w_uq", "Q N H", (Q, N, H), "attention"),
        ]
    weights += [
        _weight("w_dkv", "D C", (D, C), "attention"),
        _vector("kv_norm", "C'", (latent,), "norm"),
        _weight("w_uk", "C' N Hn", (latent, N, Hn), "attention"),
        _weight("w_uv", "C' N Hv", (latent, N, Hv), "attention"),
        _weight("wo", "N Hv D", (N, Hv, D), "attention"),
    ]
    if a.q_bias and Q is not None:
        weights.append(_vector("b_dq", "Q", (Q,)))
    if a.kv_bias:
        weights.append(_vector("b_dkv", "C", (C,)))
    if a.o_bias:
        weights.append(_vector("bo", "D", (D,)))
    return weights


def _mamba(D: int, m: Mamba) -> list[Weight]:
    """Projections, convolution with its bias, A (log), D (skip) and dt bias per head, output norm.

    Source: arXiv 2405.21060, section 7.1; the norm is gated and spans all heads.
    """
    N = m.n_heads
    H = m.d_head
    F = m.d_projected
    scanned = m.d_scanned
    return [
        _weight("w_in", "D F", (D, F), "mamba"),
        _vector("conv", "F' W", (scanned, m.d_conv), "mamba"),
        _vector("b_conv", "F'", (scanned,), "mamba"),
        _vector("a_log", "N", (N,), "mamba"),
        _vector("skip", "N", (N,), "mamba"),
        _vector("b_dt", "N", (N,), "mamba"),
        _vector("scan_norm", "N H", (N, H), "norm"),
        _weight("w_out", "N H D", (N, H, D), "mamba"),
    ]


def _mlp(D: int, mlp: Mlp) -> list[Weight]:
    F = mlp.d_ff
    weights = [_weight(f"w_{name}", "D F", (D, F), "mlp") for name in mlp.up_projections]
    weights.append(_weight("w_down", "F D", (F, D), "mlp"))
    if mlp.bias:
        weights += [_vector(f"b_{name}", "F", (F,), "mlp") for name in mlp.up_projections]
        weights.append(_vector("b_down", "D", (D,), "mlp"))
    return weights


def _moe(D: int, moe: Moe) -> list[Weight]:
    E = moe.n_experts
    F = moe.d_ff
    up = moe.up_projections
    weights = [_weight("router", "D E", (D, E), "moe")]
    letter = "D"
    width = D
    if moe.d_latent:
        letter = "C"
        width = moe.d_latent
        weights.append(_weight("latent_down", "D C", (D, width), "moe"))
    weights += [_weight(f"w_{name}", f"E {letter} F", (E, width, F), "moe") for name in up]
    weights.append(_weight("w_down", f"E F {letter}", (E, F, width), "moe"))
    if moe.d_latent:
        weights.append(_weight("latent_up", "C D", (width, D), "moe"))
    if shared := moe.d_ff_shared:
        weights += [_weight(f"shared_{name}", "D F", (D, shared), "moe") for name in up]
        weights.append(_weight("shared_down", "F D", (shared, D), "moe"))
    if moe.shared_gate:
        weights.append(_weight("shared_scale", "D", (D,), "moe"))
    if moe.router_bias:
        weights.append(_vector("b_router", "E", (E,), "moe"))
    if moe.bias:
        weights += [_vector(f"b_{name}", "E F", (E, F), "moe") for name in up]
        weights.append(_vector("b_down", f"E {letter}", (E, width), "moe"))
    return weights


def _norms(D: int, layer: Layer) -> list[Weight]:
    blocks = []
    if layer.attention:
        blocks.append("attention")
    if layer.mamba:
        blocks.append("mamba")
    if layer.ffn and layer.norms != "shared":
        blocks.append("ffn")
    prefixes = {"post": ("post_",), "both": ("", "post_")}.get(layer.norms, ("",))
    names = [f"{prefix}{block}_norm" for block in blocks for prefix in prefixes]
    weights = []
    if layer.norm_scale:
        weights += [_vector(name, "D", (D,), "norm") for name in names]
    if layer.norm_bias:
        weights += [_vector(f"b_{name}", "D", (D,), "norm") for name in names]
    return weights
