"""Qwen2-MoE (with a gated shared expert) and Qwen3-MoE."""

from __future__ import annotations

from shardwise.models.config import Layer, Mlp, Moe
from shardwise.models.families._layers import layer_groups, layer_order
from shardwise.models.families._names import OUTER_NAMES as OUTER_NAMES
from shardwise.models.families._names import expert_names, llama_tensors
from shardwise.models.families._numbers import activation, expert_count, rms_norm
from shardwise.models.families.qwen import attention, sliding_window
from shardwise.models.keys import Keys
from shardwise.models.model import ModelConfig
from shardwise.models.numerics import Routing
from shardwise.models.tensor_layout import TensorLayout

MODEL_TYPES = ("qwen2_moe", "qwen3_moe")
ARCHITECTURES = ("Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM")

_DEFAULTS = {
    "qwen2_moe": {
        "intermediate_size": 5632,
        "num_key_value_heads": 16,
        "num_experts": 60,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 1408,
    },
    "qwen3_moe": {
        "intermediate_size": 6144,
        "num_key_value_heads": 4,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
    },
}


def build(keys: Keys, name: str) -> ModelConfig:
    """Build a model from the keys of Qwen2MoeConfig or Qwen3MoeConfig."""
    is_qwen3 = keys.is_type("qwen3")
    family = "qwen3_moe" if is_qwen3 else "qwen2_moe"
    keys.set_defaults(_DEFAULTS[family])
    D = keys.integer("hidden_size")
    n_layers = keys.layer_count("num_hidden_layers")
    window = sliding_window(keys)
    n_local = keys.integer("max_window_layers", default=28, low=0)
    alternates = window is not None and not is_qwen3
    local_flags = keys.local_layers(n_layers, lambda i: alternates and i % 2 == 0 and i < n_local)
    windows: dict[bool, int | None] = {False: None, True: window}
    if is_qwen3:  # every layer has the window
        windows[False] = window
    moe = _moe(keys, is_qwen3)
    mlp = Mlp(d_ff=keys.integer("intermediate_size"), activation=moe.activation)
    kinds = list(zip(local_flags, _routed_layers(keys, n_layers), strict=False))

    def build_layer(kind: tuple[bool, bool]) -> Layer:
        is_local, is_routed = kind
        block = attention(keys, D, windows[is_local], is_qwen3=is_qwen3)
        if is_routed:
            return Layer(attention=block, ffn=moe)
        return Layer(attention=block, ffn=mlp)

    return ModelConfig(
        name=name,
        family=family,
        d_model=D,
        vocab=keys.integer("vocab_size"),
        groups=layer_groups(kinds, build_layer),
        order=layer_order(kinds),
        tied_embeddings=keys.flag("tie_word_embeddings", False),
        max_seq=keys.integer("max_position_embeddings", default=32768),
        norm=rms_norm(keys),
    )


def _routed_layers(keys: Keys, n_layers: int) -> list[bool]:
    """Whether each layer has experts: every `decoder_sparse_step`-th not in `mlp_only_layers`."""
    dense = set(keys.items("mlp_only_layers", int) or [])
    period = keys.integer("decoder_sparse_step", default=1)
    return [i not in dense and (i + 1) % period == 0 for i in range(n_layers)]


def _moe(keys: Keys, is_qwen3: bool) -> Moe:
    d_ff_shared = 0
    if not is_qwen3:
        d_ff_shared = keys.integer("shared_expert_intermediate_size", default=5632)
    return Moe(
        n_experts=expert_count(keys, "num_experts"),
        experts_per_token=keys.integer("num_experts_per_tok"),
        d_ff=keys.integer("moe_intermediate_size"),
        n_shared_experts=int(not is_qwen3),
        d_ff_shared=d_ff_shared,
        shared_gate=not is_qwen3,
        activation=activation(keys),
        routing=Routing(
            normalized=keys.flag("norm_topk_prob", False),
            aux_loss=keys.number("router_aux_loss_coef", default=0.001),
        ),
    )


def layer_tensors(config: ModelConfig, layer: Layer) -> dict[str, TensorLayout]:
    """Layouts of a layer's weights; experts have separate tensors."""
    names = expert_names(layer, shared_module="shared_expert")
    names["shared_scale"] = "mlp.shared_expert_gate.weight"
    return llama_tensors(config, layer, names)
