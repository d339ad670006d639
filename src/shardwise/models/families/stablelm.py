"""StableLM 3B and StableLM 2 1.6B: Llama with LayerNorm and partial rotary positions."""

from __future__ import annotations

from shardwise.models.config import Attention, Layer, Mlp
from shardwise.models.families._layers import uniform_model
from shardwise.models.families._names import OUTER_NAMES as OUTER_NAMES
from shardwise.models.families._names import llama_tensors
from shardwise.models.families._numbers import activation, layer_norm, partial_rope, rope
from shardwise.models.keys import Keys
from shardwise.models.model import ModelConfig

MODEL_TYPES = ("stablelm",)
ARCHITECTURES = ("StableLmForCausalLM",)


def build(keys: Keys, name: str) -> ModelConfig:
    """Build a model from the keys of StableLmConfig."""
    N = keys.integer("num_attention_heads")
    H = keys.even_heads("num_attention_heads", N, "hidden_size", keys.integer("hidden_size"))
    keys.refuse_flag("qk_layernorm", "LayerNorms of each query head and key head")
    is_parallel = keys.flag("use_parallel_residual", False)
    bias = keys.flag("use_qkv_bias", False)
    max_seq = keys.integer("max_position_embeddings", default=4096)
    attention = Attention(
        n_heads=N,
        n_kv_heads=keys.integer("num_key_value_heads", default=32),
        d_head=H,
        q_bias=bias,
        kv_bias=bias,
        rotary=partial_rope(keys, rope(keys, max_seq=max_seq), H, 0.25, "rope_pct"),
    )
    ffn = Mlp(d_ff=keys.integer("intermediate_size"), activation=activation(keys))
    layer = Layer(
        attention=attention,
        ffn=ffn,
        norms="shared" if is_parallel else "pre",
        norm_bias=True,
        parallel=is_parallel,
    )
    norm = layer_norm(keys)
    return uniform_model(
        keys, name, "stablelm", layer, final_norm_bias=True, max_seq=max_seq, norm=norm
    )


layer_tensors = llama_tensors
