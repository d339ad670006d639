"""StarCoder 2: LayerNorm, biases everywhere, an MLP without a gate, a sliding window."""

from __future__ import annotations

from shardwise.models.config import Attention, Layer, Mlp
from shardwise.models.families._layers import uniform_model
from shardwise.models.families._names import OUTER_NAMES as OUTER_NAMES
from shardwise.models.families._names import llama_tensors, parameter_names
from shardwise.models.families._numbers import activation, layer_norm, rope
from shardwise.models.keys import Keys
from shardwise.models.model import ModelConfig
from shardwise.models.tensor_layout import TensorLayout

MODEL_TYPES = ("starcoder2",)
ARCHITECTURES = ("Starcoder2ForCausalLM",)


def build(keys: Keys, name: str) -> ModelConfig:
    """Build a model from the keys of Starcoder2Config."""
    N = keys.integer("num_attention_heads")
    bias = keys.flag("use_bias", True)
    max_seq = keys.integer("max_position_embeddings", default=4096)
    attention = Attention(
        n_heads=N,
        n_kv_heads=keys.integer("num_key_value_heads", default=2),
        d_head=keys.head_dim(keys.integer("hidden_size"), N),
        window=keys.optional_integer("sliding_window"),
        q_bias=bias,
        kv_bias=bias,
        o_bias=bias,
        rotary=rope(keys, max_seq=max_seq),
    )
    ffn = Mlp(
        d_ff=keys.integer("intermediate_size"),
        gated=False,
        bias=bias,
        activation=activation(keys, default="gelu_pytorch_tanh"),
    )
    return uniform_model(
        keys,
        name,
        "starcoder2",
        Layer(attention=attention, ffn=ffn, norm_bias=True),
        tied=True,
        final_norm_bias=True,
        max_seq=max_seq,
        norm=layer_norm(keys, "norm_epsilon"),
    )


def layer_tensors(config: ModelConfig, layer: Layer) -> dict[str, TensorLayout]:
    """Layouts of a layer's weights."""
    modules = {"up": "mlp.c_fc", "down": "mlp.c_proj"}
    names = parameter_names(modules, scale_prefix="w_", bias_prefix="b_")
    return llama_tensors(config, layer, names)
