"""Tiny models, one for each way in which dense families differ."""

from __future__ import annotations

from typing import Any

from shardwise.models import (
    Attention,
    Layer,
    Mlp,
    ModelConfig,
    Norm,
    Rope,
    RopeScaling,
    Temperature,
    from_dict,
)
from shardwise.models.config import LayerGroup

SIZES = {
    "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2,
    "intermediate_size": 40, "vocab_size": 90, "max_position_embeddings": 64, "head_dim": 16,
}  # fmt: skip
NO_HEAD_DIM = {k: v for k, v in SIZES.items() if k != "head_dim"}
NEOX = {k: v for k, v in NO_HEAD_DIM.items() if k != "num_key_value_heads"}
FALCON = {k: v for k, v in NEOX.items() if k != "intermediate_size"}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LONG = {"rope_type": "longrope", "short_factor": [1.0, 1.1], "long_factor": [2.0, 3.0]}


def read(kind: str, keys: dict[str, Any]) -> ModelConfig:
    return from_dict(keys | {"model_type": kind}, name=kind)


def odd() -> ModelConfig:
    """What only routed families have around their experts, and what none has yet."""
    near = Attention(
        n_heads=4,
        n_kv_heads=2,
        d_head=16,
        window=7,
        chunked=True,
        clip=2.0,
        qk_norm="each",
        qk_unit=True,
        sinks=True,
        rotary=Rope(
            interleaved=True,
            dims=12,
            scaling=RopeScaling(kind="dynamic", factor=3.0, original=16),
        ),
    )
    far = Attention(
        n_heads=4,
        n_kv_heads=4,
        d_head=16,
        rope=False,
        temperature=Temperature(floor=4, scale=0.5),
        o_bias=True,
        qk_norm="full",
    )
    kinds = (
        Layer(attention=near, ffn=Mlp(d_ff=40, activation="gelu_quick"), norms="both"),
        Layer(
            attention=far, ffn=Mlp(d_ff=24, gated=False, bias=True, activation="relu2"),
            norms="post", parallel=True, norm_scale=False, norm_bias=True,
        ),
    )  # fmt: skip
    return ModelConfig(
        name="odd",
        d_model=32,
        vocab=91,
        groups=tuple(
            LayerGroup(layer=layer, count=n) for layer, n in zip(kinds, (3, 2), strict=True)
        ),
        order=(),
        norm=Norm(kind="layer", eps=1e-5, plus_one=True),
        final_norm_scale=False,
        final_norm_bias=True,
        unembedding_bias=True,
        embedding_scale=3.0,
        residual_scale=0.7,
        logit_scale=1.5,
    )


CASES = {
    "llama": read(
        "llama",
        SIZES | {"attention_bias": True, "mlp_bias": True, "rope_scaling": LLAMA3},
    ),
    "mistral": read(
        "mistral",
        SIZES | {"sliding_window": 5, "rope_scaling": {"rope_type": "linear", "factor": 3.0}},
    ),
    "qwen2": read(
        "qwen2",
        SIZES | {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    ),
    "qwen3": read("qwen3", SIZES | {"rope_scaling": YARN, "tie_word_embeddings": True}),
    "gemma2": read(
        "gemma2",
        SIZES
        | {"sliding_window": 5, "query_pre_attn_scalar": 9, "attn_logit_softcapping": 2.0,
           "final_logit_softcapping": 3.0, "num_hidden_layers": 4},
    ),
    "gemma3": read(
        "gemma3_text",
        SIZES
        | {"sliding_window": 5, "sliding_window_pattern": 3, "num_hidden_layers": 7,
           "rope_theta": 900.0, "rope_local_base_freq": 30.0},
    ),
    "olmo2": read("olmo2", SIZES),
    "phi3": read(
        "phi3",
        NO_HEAD_DIM
        | {"rope_scaling": LONG, "original_max_position_embeddings": 16,
           "partial_rotary_factor": 0.5, "sliding_window": 9},
    ),
    "gpt2": read(
        "gpt2", {"n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 64, "vocab_size": 91},
    ),
    "gpt_neox": read("gpt_neox", NEOX | {"rotary_pct": 0.5, "rotary_emb_base": 50}),
    "falcon, one norm": read(
        "falcon",
        FALCON
        | {"new_decoder_architecture": True, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1,
           "bias": True},
    ),
    "falcon, ALiBi": read(
        "falcon",
        FALCON | {"alibi": True, "multi_query": False, "parallel_attn": False, "bias": True},
    ),
    "odd": odd(),
    "granite": read(
        "granite",
        SIZES
        | {"embedding_multiplier": 3.0, "residual_multiplier": 0.4, "attention_multiplier": 0.2,
           "logits_scaling": 2.5},
    ),
    "nemotron": read("nemotron", SIZES | {"attention_bias": True, "mlp_bias": True}),
    "smollm3": read("smollm3", SIZES | {"no_rope_layer_interval": 2}),
    "cohere, norms of heads": read(
        "cohere", NO_HEAD_DIM | {"use_qk_norm": True, "logit_scale": 0.5},
    ),
    "olmo": read("olmo", SIZES | {"clip_qkv": 1.5}),
}  # fmt: skip

# Between them every array and every block that a gradient goes through; the quick ones most.
QUICK = ("gemma2", "odd")
TRAINED = (
    *QUICK,
    "gpt2",
    "gpt_neox",
    "granite",
    "nemotron",
    "smollm3",
    "cohere, norms of heads",
    "olmo",
)
