"""OLMoE: routed experts in every layer, norms of all query heads and of all key heads together."""

from __future__ import annotations

from shardwise.models.config import Attention, Layer, Moe
from shardwise.models.families._layers import uniform_model
from shardwise.models.families._names import OUTER_NAMES as OUTER_NAMES
from shardwise.models.families._names import expert_names, llama_tensors
from shardwise.models.families._numbers import activation, expert_count, rms_norm, rope
from shardwise.models.keys import Keys
from shardwise.models.model import ModelConfig
from shardwise.models.numerics import Routing
from shardwise.models.tensor_layout import TensorLayout

MODEL_TYPES = ("olmoe",)
ARCHITECTURES = ("OlmoeForCausalLM",)


def build(keys: Keys, name: str) -> ModelConfig:
    """Build a model from the keys of OlmoeConfig."""
    N = keys.integer("num_attention_heads")
    bias = keys.flag("attention_bias", False)
    max_seq = keys.integer("max_position_embeddings", default=4096)
    attention = Attention(
        n_heads=N,
        n_kv_heads=keys.integer("num_key_value_heads", default=N),
        d_head=keys.head_dim(keys.integer("hidden_size"), N),
        q_bias=bias,
        kv_bias=bias,
        o_bias=bias,
        clip=keys.optional_number("clip_qkv"),
        qk_norm="full",
        rotary=rope(keys, max_seq=max_seq),
    )
    ffn = Moe(
        n_experts=expert_count(keys, "num_experts", default=64),
        experts_per_token=keys.integer("num_experts_per_tok", default=8),
        d_ff=keys.integer("intermediate_size", default=2048),
        activation=activation(keys),
        routing=Routing(
            normalized=keys.flag("norm_topk_prob", False),
            aux_loss=keys.number("router_aux_loss_coef", default=0.01),
        ),
    )
    layer = Layer(attention=attention, ffn=ffn)
    norm = rms_norm(keys, 1e-5)
    return uniform_model(keys, name, "olmoe", layer, max_seq=max_seq, norm=norm)


def layer_tensors(config: ModelConfig, layer: Layer) -> dict[str, TensorLayout]:
    """Layouts of a layer's weights; experts have separate tensors."""
    return llama_tensors(config, layer, expert_names(layer))
