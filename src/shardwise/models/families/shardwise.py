"""Models that were published without a config.json, described with this package's own keys.

The keys are fields of `ModelConfig`, `Attention`, `Mlp` and `Layer`: d_model, n_layers, d_ff,
n_heads, n_kv_heads, d_head, vocab, gated, bias, norms, norm_bias, parallel, tied_embeddings,
n_positions, max_seq, activation. Further keys are `norm` ("rms" or "layer") and `norm_eps` of
`Norm`, and `theta` of `Rope`.
"""

from __future__ import annotations

from shardwise.models.config import Attention, Layer, LayerGroup, Mlp
from shardwise.models.families._numbers import activation
from shardwise.models.keys import Keys
from shardwise.models.model import ModelConfig
from shardwise.models.numerics import Norm, Rope

MODEL_TYPES = ("shardwise",)
ARCHITECTURES = ()


def build(keys: Keys, name: str) -> ModelConfig:
    """Build a dense model of equal layers."""
    D = keys.integer("d_model")
    N = keys.integer("n_heads")
    bias = keys.flag("bias", False)
    norm_bias = keys.flag("norm_bias", False)
    n_positions = keys.integer("n_positions", default=0, low=0)
    attention = Attention(
        n_heads=N,
        n_kv_heads=keys.integer("n_kv_heads", default=N),
        d_head=keys.optional_integer("d_head") or keys.even_heads("n_heads", N, "d_model", D),
        q_bias=bias,
        kv_bias=bias,
        o_bias=bias,
        rope=n_positions == 0,
        rotary=Rope(theta=keys.number("theta", default=10_000.0)),
    )
    gated = keys.flag("gated", True)
    ffn = Mlp(
        d_ff=keys.integer("d_ff"),
        gated=gated,
        bias=bias,
        activation=activation(keys, "activation", "silu" if gated else "gelu"),
    )
    layer = Layer(
        attention=attention,
        ffn=ffn,
        norms=keys.text("norms", "pre"),
        norm_bias=norm_bias,
        parallel=keys.flag("parallel", False),
    )
    return ModelConfig(
        name=name,
        family=keys.text("family", "dense"),
        d_model=D,
        vocab=keys.integer("vocab"),
        groups=(LayerGroup(layer=layer, count=keys.layer_count("n_layers")),),
        tied_embeddings=keys.flag("tied_embeddings", False),
        n_positions=n_positions,
        final_norm_bias=norm_bias,
        max_seq=keys.optional_integer("max_seq"),
        norm=Norm(
            kind=keys.text("norm", "layer" if norm_bias else "rms"),
            eps=keys.number("norm_eps", default=1e-5 if norm_bias else 1e-6),
        ),
    )
