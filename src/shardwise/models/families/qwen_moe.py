"""Qwen2-MoE (with a gated shared expert) and Qwen3-MoE."""

from __future__ import annotations

from shardwise.models.config import Layer, Mlp, Moe
from shardwise.models.families._layers import grouped, in_order
from shardwise.models.families._names import OUTER as OUTER
from shardwise.models.families._names import routed, usual
from shardwise.models.families._numbers import activation, rms_norm
from shardwise.models.families.qwen import attention, sliding_window
from shardwise.models.keys import Keys
from shardwise.models.model import ModelConfig
from shardwise.models.numerics import Routing
from shardwise.models.stored import Stored

MODEL_TYPES = ("qwen2_moe", "qwen3_moe")
ARCHITECTURES = ("Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM")


def build(keys: Keys, name: str) -> ModelConfig:
    """Keys of Qwen2MoeConfig and Qwen3MoeConfig."""
    D, third = keys.whole("hidden_size"), keys.says("qwen3")
    n_layers, window = keys.layers("num_hidden_layers"), sliding_window(keys)
    last_local = keys.whole("max_window_layers", default=28, low=0)
    alternate = window is not None and not third
    local = keys.layer_types(n_layers, lambda i: alternate and i % 2 == 0 and i < last_local)
    dense = set(keys.items("mlp_only_layers", int) or ())
    step = keys.whole("decoder_sparse_step", default=1)
    d_ff = keys.whole("intermediate_size", default=6144 if third else 5632)
    moe, act = _moe(keys, third), activation(keys)

    def layer(kind: tuple[bool, bool]) -> Layer:
        is_local, routed = kind
        here = window if is_local or third else None
        a = attention(keys, D, here, third=third, kv_default=4 if third else 16)
        return Layer(attention=a, ffn=moe if routed else Mlp(d_ff=d_ff, activation=act))

    routed = [i not in dense and (i + 1) % step == 0 for i in range(n_layers)]
    kinds = list(zip(local, routed, strict=False))
    return ModelConfig(
        name=name,
        family="qwen3_moe" if third else "qwen2_moe",
        d_model=D,
        vocab=keys.whole("vocab_size"),
        groups=grouped(kinds, layer),
        order=in_order(kinds),
        tied_embeddings=keys.flag("tie_word_embeddings", False),
        max_seq=keys.whole("max_position_embeddings", default=32768),
        norm=rms_norm(keys),
    )


def _moe(keys: Keys, third: bool) -> Moe:
    shared = 0 if third else keys.whole("shared_expert_intermediate_size", default=5632)
    return Moe(
        n_experts=keys.whole("num_experts", default=128 if third else 60),
        experts_per_token=keys.whole("num_experts_per_tok", default=8 if third else 4),
        d_ff=keys.whole("moe_intermediate_size", default=768 if third else 1408),
        n_shared_experts=0 if third else 1,
        d_ff_shared=shared,
        shared_gate=not third,
        activation=activation(keys),
        routing=Routing(
            normalized=keys.flag("norm_topk_prob", False),
            aux_loss=keys.number("router_aux_loss_coef", default=0.001),
        ),
    )


def layer_names(config: ModelConfig, layer: Layer) -> dict[str, Stored]:
    """Tensors of a layer."""
    scale = {"shared_scale": "mlp.shared_expert_gate.weight"}
    return usual(config, layer, {**routed(layer, shared="shared_expert"), **scale})
