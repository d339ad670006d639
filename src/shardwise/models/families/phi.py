"""Phi-1, Phi-1.5 and Phi-2: attention and MLP in parallel, biases everywhere, partial rotary."""

from __future__ import annotations

from shardwise.models.config import Attention, Layer, Mlp
from shardwise.models.families._layers import uniform_model
from shardwise.models.families._names import llama_tensors, parameter_names
from shardwise.models.families._numbers import activation, layer_norm, partial_rope, rope
from shardwise.models.keys import Keys
from shardwise.models.model import ModelConfig
from shardwise.models.tensor_layout import TensorLayout

MODEL_TYPES = ("phi",)
ARCHITECTURES = ("PhiForCausalLM",)


def build(keys: Keys, name: str) -> ModelConfig:
    """Build a model from the keys of PhiConfig."""
    N = keys.integer("num_attention_heads")
    H = keys.head_dim(keys.integer("hidden_size"), N)
    keys.refuse_flag("qk_layernorm", "norms of queries and keys with a bias")
    max_seq = keys.integer("max_position_embeddings", default=2048)
    attention = Attention(
        n_heads=N,
        n_kv_heads=keys.integer("num_key_value_heads", default=N),
        d_head=H,
        q_bias=True,
        kv_bias=True,
        o_bias=True,
        rotary=partial_rope(keys, rope(keys, max_seq=max_seq), H, 0.5),
    )
    ffn = Mlp(
        d_ff=keys.integer("intermediate_size"),
        gated=False,
        bias=True,
        activation=activation(keys, default="gelu_new"),
    )
    return uniform_model(
        keys,
        name,
        "phi",
        Layer(attention=attention, ffn=ffn, norms="shared", norm_bias=True, parallel=True),
        final_norm_bias=True,
        unembedding_bias=True,
        max_seq=max_seq,
        norm=layer_norm(keys),
    )


OUTER_NAMES = {
    "embedding": "model.embed_tokens.weight",
    "final_norm": "model.final_layernorm.weight",
    "b_final_norm": "model.final_layernorm.bias",
    "unembedding": "lm_head.weight",
    "b_unembedding": "lm_head.bias",
}

_MODULES = {"o": "self_attn.dense", "_up": "mlp.fc1", "_down": "mlp.fc2"}


def layer_tensors(config: ModelConfig, layer: Layer) -> dict[str, TensorLayout]:
    """Layouts of a layer's weights."""
    names = parameter_names(_MODULES, scale_prefix="w", bias_prefix="b")
    return llama_tensors(config, layer, names)
