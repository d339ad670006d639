"""Mixtral: Mistral with routed experts in every layer."""

from __future__ import annotations

from shardwise.models.config import Attention, Layer, LayerGroup, Moe
from shardwise.models.families._names import OUTER_NAMES as OUTER_NAMES
from shardwise.models.families._names import llama_tensors
from shardwise.models.families._numbers import activation, expert_count, rms_norm, rope
from shardwise.models.keys import Keys
from shardwise.models.model import ModelConfig
from shardwise.models.numerics import Routing
from shardwise.models.tensor_layout import TensorLayout

MODEL_TYPES = ("mixtral",)
ARCHITECTURES = ("MixtralForCausalLM",)


def build(keys: Keys, name: str) -> ModelConfig:
    """Build a model from the keys of MixtralConfig."""
    D = keys.integer("hidden_size")
    N = keys.integer("num_attention_heads")
    max_seq = keys.integer("max_position_embeddings", default=131_072)
    attention = Attention(
        n_heads=N,
        n_kv_heads=keys.integer("num_key_value_heads", default=8),
        d_head=keys.head_dim(D, N),
        window=keys.optional_integer("sliding_window"),
        rotary=rope(keys, max_seq=max_seq, theta=1e6),
    )
    ffn = Moe(
        n_experts=expert_count(keys, "num_local_experts", default=8),
        experts_per_token=keys.integer("num_experts_per_tok", default=2),
        d_ff=keys.integer("intermediate_size"),
        activation=activation(keys),
        routing=Routing(aux_loss=keys.number("router_aux_loss_coef", default=0.001)),
    )
    layer = Layer(attention=attention, ffn=ffn)
    return ModelConfig(
        name=name,
        family="mixtral",
        d_model=D,
        vocab=keys.integer("vocab_size"),
        groups=(LayerGroup(layer=layer, count=keys.layer_count("num_hidden_layers")),),
        tied_embeddings=keys.flag("tie_word_embeddings", False),
        max_seq=max_seq,
        norm=rms_norm(keys, 1e-5),
    )


def layer_tensors(config: ModelConfig, layer: Layer) -> dict[str, TensorLayout]:
    """Layouts of a layer's weights; in each expert w1 is gate, w3 is up and w2 is down."""
    names = {"router": "block_sparse_moe.gate.weight"}
    for part, module in {"gate": "w1", "up": "w3", "down": "w2"}.items():
        names[f"w_{part}"] = f"block_sparse_moe.experts.{{expert}}.{module}.weight"
    return llama_tensors(config, layer, names)
