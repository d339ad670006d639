"""GPT-OSS: experts with biases, every other layer local, attention sinks."""

from __future__ import annotations

from shardwise.models.config import Attention, Layer, Moe
from shardwise.models.families._layers import grouped, in_order
from shardwise.models.families._names import LAYER, halves, usual
from shardwise.models.families._names import OUTER as OUTER
from shardwise.models.families._numbers import activation, rms_norm, rope, scaling_keys, yarn_gain
from shardwise.models.keys import Keys
from shardwise.models.model import ModelConfig
from shardwise.models.numerics import ClampedGlu, Rope, RopeScaling, Routing
from shardwise.models.stored import Stored, same
from shardwise.models.weights import layer_weights

MODEL_TYPES = ("gpt_oss",)
ARCHITECTURES = ("GptOssForCausalLM",)


def build(keys: Keys, name: str) -> ModelConfig:
    """Keys of GptOssConfig."""
    D, N = keys.whole("hidden_size"), keys.whole("num_attention_heads")
    K, H = keys.whole("num_key_value_heads", default=8), keys.head_dim(D, N, 64)
    bias, window = keys.flag("attention_bias", True), keys.maybe("sliding_window", 128)
    local = keys.layer_types(keys.layers("num_hidden_layers"), lambda i: i % 2 == 0)
    max_seq = keys.whole("max_position_embeddings", default=131_072)
    rotary = _rotary(keys, max_seq)
    moe = Moe(
        n_experts=keys.whole("num_local_experts", default=128),
        experts_per_token=keys.whole("num_experts_per_tok", "experts_per_token", default=4),
        d_ff=keys.whole("intermediate_size"),
        router_bias=True,
        bias=True,
        activation=activation(keys),
        clamp=ClampedGlu(
            alpha=keys.number("swiglu_alpha", default=1.702),
            limit=keys.number("swiglu_limit", default=7.0),
        ),
        routing=Routing(aux_loss=keys.number("router_aux_loss_coef", default=0.001)),
    )

    def layer(is_local: bool) -> Layer:
        attention = Attention(
            n_heads=N,
            n_kv_heads=K,
            d_head=H,
            window=window if is_local else None,
            q_bias=bias,
            kv_bias=bias,
            o_bias=bias,
            sinks=True,
            rotary=rotary,
        )
        return Layer(attention=attention, ffn=moe)

    return ModelConfig(
        name=name,
        family="gpt_oss",
        d_model=D,
        vocab=keys.whole("vocab_size"),
        groups=grouped(local, layer),
        order=in_order(local),
        tied_embeddings=keys.flag("tie_word_embeddings", False),
        max_seq=max_seq,
        norm=rms_norm(keys, 1e-5),
    )


def _rotary(keys: Keys, max_seq: int) -> Rope:
    """YaRN, also where the file does not say it."""
    if scaling_keys(keys) is not keys:
        return rope(keys, max_seq=max_seq, theta=150_000.0)
    yarn = RopeScaling(
        kind="yarn",
        factor=32.0,
        original=4096,
        truncate=False,
        attention_factor=yarn_gain(32.0),
    )
    return Rope(theta=keys.number("rope_theta", default=150_000.0), scaling=yarn)


def layer_names(config: ModelConfig, layer: Layer) -> dict[str, Stored]:
    """Tensors of a layer in bf16; experts are stacked, gate and up take turns in one tensor."""
    router = {"router": "mlp.router.weight", "b_router": "mlp.router.bias"}
    down = {"w_down": "down_proj", "b_down": "down_proj_bias"}
    both = dict.fromkeys(("w_gate", "w_up"), "gate_up_proj")
    both |= dict.fromkeys(("b_gate", "b_up"), "gate_up_proj_bias")
    found = usual(config, layer, router)
    for weight in layer_weights(config, layer):
        if weight.name in both:
            tensor = f"{LAYER}mlp.experts.{both[weight.name]}"
            found[weight.name] = halves(weight, tensor, interleaved=True)
        if weight.name in down:
            found[weight.name] = same(weight, f"{LAYER}mlp.experts.{down[weight.name]}")
    return found
