"""Mixtral: Mistral with routed experts in every layer."""

from __future__ import annotations

from shardwise.models.config import Attention, Layer, LayerGroup, Moe
from shardwise.models.families._names import OUTER as OUTER
from shardwise.models.families._names import usual
from shardwise.models.families._numbers import activation, rms_norm, rope
from shardwise.models.keys import Keys
from shardwise.models.model import ModelConfig
from shardwise.models.numerics import Routing
from shardwise.models.stored import Stored

MODEL_TYPES = ("mixtral",)
ARCHITECTURES = ("MixtralForCausalLM",)


def build(keys: Keys, name: str) -> ModelConfig:
    """Keys of MixtralConfig."""
    D, N = keys.whole("hidden_size"), keys.whole("num_attention_heads")
    max_seq = keys.whole("max_position_embeddings", default=4096 * 32)
    attention = Attention(
        n_heads=N,
        n_kv_heads=keys.whole("num_key_value_heads", default=8),
        d_head=keys.head_dim(D, N),
        window=keys.maybe("sliding_window"),
        rotary=rope(keys, max_seq=max_seq, theta=1e6),
    )
    ffn = Moe(
        n_experts=keys.whole("num_local_experts", default=8),
        experts_per_token=keys.whole("num_experts_per_tok", default=2),
        d_ff=keys.whole("intermediate_size"),
        activation=activation(keys),
        routing=Routing(aux_loss=keys.number("router_aux_loss_coef", default=0.001)),
    )
    layer = Layer(attention=attention, ffn=ffn)
    return ModelConfig(
        name=name,
        family="mixtral",
        d_model=D,
        vocab=keys.whole("vocab_size"),
        groups=(LayerGroup(layer=layer, count=keys.layers("num_hidden_layers")),),
        tied_embeddings=keys.flag("tie_word_embeddings", False),
        max_seq=max_seq,
        norm=rms_norm(keys, 1e-5),
    )


def layer_names(config: ModelConfig, layer: Layer) -> dict[str, Stored]:
    """Tensors of a layer; w1, w3 and w2 are gate, up and down."""
    each = {"gate": "w1", "up": "w3", "down": "w2"}
    module = "block_sparse_moe.experts.{expert}"
    changes = {f"w_{ours}": f"{module}.{theirs}.weight" for ours, theirs in each.items()}
    return usual(config, layer, {"router": "block_sparse_moe.gate.weight", **changes})
