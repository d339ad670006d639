"""GLM-4.5 and 4.6: grouped-query attention with partial rotary, and the experts of DeepSeek-V3.

The multi-token prediction layers are not counted as part of the model.
"""

from __future__ import annotations

from shardwise.models.config import Attention, Layer, Mlp
from shardwise.models.families._layers import layer_groups, layer_order
from shardwise.models.families._names import OUTER_NAMES as OUTER_NAMES
from shardwise.models.families._names import expert_names, llama_tensors
from shardwise.models.families._numbers import activation, partial_rope, rms_norm, rope
from shardwise.models.families.deepseek import correction_layout, routed_experts
from shardwise.models.keys import Keys
from shardwise.models.model import ModelConfig
from shardwise.models.tensor_layout import TensorLayout

MODEL_TYPES = ("glm4_moe",)
ARCHITECTURES = ("Glm4MoeForCausalLM",)

_DEFAULTS = {
    "moe_intermediate_size": 1408,
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "routed_scaling_factor": 1.0,
}


def build(keys: Keys, name: str) -> ModelConfig:
    """Build a model from the keys of Glm4MoeConfig."""
    keys.set_defaults(_DEFAULTS)
    D = keys.integer("hidden_size")
    N = keys.integer("num_attention_heads")
    H = keys.head_dim(D, N)
    bias = keys.flag("attention_bias", False)
    max_seq = keys.integer("max_position_embeddings", default=131_072)
    attention = Attention(
        n_heads=N,
        n_kv_heads=keys.integer("num_key_value_heads", default=8),
        d_head=H,
        q_bias=bias,
        kv_bias=bias,
        qk_norm="head" if keys.flag("use_qk_norm", False) else "",
        rotary=partial_rope(keys, rope(keys, max_seq=max_seq), H, 0.5),
    )
    mlp = Mlp(d_ff=keys.integer("intermediate_size"), activation=activation(keys))
    layers = {
        False: Layer(attention=attention, ffn=mlp),
        True: Layer(attention=attention, ffn=routed_experts(keys, is_v3=True)),
    }
    n_dense = keys.integer("first_k_dense_replace", default=1, low=0)
    routed_flags = [i >= n_dense for i in range(keys.layer_count("num_hidden_layers"))]
    return ModelConfig(
        name=name,
        family="glm4_moe",
        d_model=D,
        vocab=keys.integer("vocab_size"),
        groups=layer_groups(routed_flags, layers.__getitem__),
        order=layer_order(routed_flags),
        tied_embeddings=keys.flag("tie_word_embeddings", False),
        max_seq=max_seq,
        norm=rms_norm(keys, 1e-5),
    )


def layer_tensors(config: ModelConfig, layer: Layer) -> dict[str, TensorLayout]:
    """Layouts of a layer's weights; experts have separate tensors."""
    names = expert_names(layer, shared_module="shared_experts")
    return llama_tensors(config, layer, names) | correction_layout(layer)
