"""DeepSeek-V2 and V3: latent attention, shared and routed experts after the first dense layers.

The router's load-balancing bias of V3 is a running statistic, not a parameter, and its layers for
predicting further tokens are not part of the model that is counted.
"""

from __future__ import annotations

from shardwise.errors import BadShape
from shardwise.models.config import Attention, Layer, Mla, Mlp, Moe
from shardwise.models.families._layers import grouped, in_order
from shardwise.models.families._names import LAYER, fused, routed, usual
from shardwise.models.families._names import OUTER as OUTER
from shardwise.models.families._numbers import activation, rms_norm, rope, scaling_keys, yarn_gain
from shardwise.models.keys import Keys
from shardwise.models.model import ModelConfig
from shardwise.models.numerics import Rope, Routing
from shardwise.models.stored import Part, Stored
from shardwise.models.weights import Weight, layer_weights

MODEL_TYPES = ("deepseek_v2", "deepseek_v3")
ARCHITECTURES = ("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM")


def build(keys: Keys, name: str) -> ModelConfig:
    """Keys of DeepseekV2Config and DeepseekV3Config."""
    third = keys.says("deepseek_v3")
    max_seq = keys.whole("max_position_embeddings", default=4096 if third else 2048)
    attention, moe = _attention(keys, third, max_seq), _moe(keys, third)
    bias = False if third else keys.flag("mlp_bias", False)
    mlp = Mlp(d_ff=keys.whole("intermediate_size"), bias=bias, activation=activation(keys))
    dense = keys.whole("first_k_dense_replace", default=3 if third else 0, low=0)
    every = keys.whole("moe_layer_freq", default=1)
    routed = [i >= dense and i % every == 0 for i in range(keys.layers("num_hidden_layers"))]
    return ModelConfig(
        name=name,
        family="deepseek_v3" if third else "deepseek_v2",
        d_model=keys.whole("hidden_size"),
        vocab=keys.whole("vocab_size"),
        groups=grouped(
            routed, lambda is_routed: Layer(attention=attention, ffn=moe if is_routed else mlp)
        ),
        order=in_order(routed),
        tied_embeddings=keys.flag("tie_word_embeddings", False),
        max_seq=max_seq,
        norm=rms_norm(keys),
    )


def _attention(keys: Keys, third: bool, max_seq: int) -> Attention:
    N, bias = keys.whole("num_attention_heads"), keys.flag("attention_bias", False)
    keys.maybe("num_key_value_heads")  # says N again: every head has its own key and value
    mla = Mla(
        q_lora_rank=keys.maybe("q_lora_rank", 1536),
        kv_lora_rank=keys.whole("kv_lora_rank", default=512),
        d_nope=keys.whole("qk_nope_head_dim", default=128),
        d_rope=keys.whole("qk_rope_head_dim", default=64),
        d_v=keys.whole("v_head_dim", default=128),
    )
    d_head = mla.d_nope + mla.d_rope
    pairs = keys.flag("rope_interleave", True) if third else True
    rotary = rope(keys, max_seq=max_seq, interleaved=pairs)
    return Attention(
        n_heads=N,
        n_kv_heads=N,
        d_head=d_head,
        mla=mla,
        q_bias=bias,
        kv_bias=bias,
        o_bias=bias,
        rotary=rotary,
        scale=_scale(keys, rotary, d_head),
    )


def _scale(keys: Keys, rotary: Rope, d_head: int) -> float | None:
    """Under scaled positions scores grow by the square of YaRN's gain; None where they do not."""
    told = scaling_keys(keys)
    of_all = told.number("mscale_all_dim", default=0.0) if told is not keys else 0.0
    if not (rotary.scaling and of_all):
        return None
    gain = yarn_gain(rotary.scaling.factor, of_all)
    return float(d_head**-0.5 * gain * gain)


def _moe(keys: Keys, third: bool) -> Moe:
    d_ff = keys.whole("moe_intermediate_size", default=2048 if third else 1407)
    shared = keys.whole("n_shared_experts", default=1 if third else 2, low=0)
    return Moe(
        n_experts=keys.whole("n_routed_experts", default=256 if third else 64),
        experts_per_token=keys.whole("num_experts_per_tok", **({"default": 8} if third else {})),
        d_ff=d_ff,
        n_shared_experts=shared,
        d_ff_shared=shared * d_ff,
        activation=activation(keys),
        routing=_routing(keys, third),
    )


def _routing(keys: Keys, third: bool) -> Routing:
    """V3 chooses in groups by sigmoid scores and a correction; V2 by softmax, not normalised."""
    scale = keys.number("routed_scaling_factor", default=2.5 if third else 1.0)
    n_groups = keys.maybe("n_group", 8 if third else None) or 1
    top_groups = keys.maybe("topk_group", 4 if third else None) or 1
    if third:
        return Routing(
            score="sigmoid",
            normalized=keys.flag("norm_topk_prob", True),
            correction=True,
            n_groups=n_groups,
            top_groups=top_groups,
            group_best=2,
            scale=scale,
        )
    limited = keys.text("topk_method", "greedy") == "group_limited_greedy"
    return Routing(
        normalized=False,
        n_groups=n_groups if limited else 1,
        top_groups=top_groups if limited else 1,
        scale=scale,
        aux_loss=keys.number("aux_loss_alpha", default=0.0),
    )


def layer_names(config: ModelConfig, layer: Layer) -> dict[str, Stored]:
    """Tensors of a layer; one holds what rebuilds keys and values of each head."""
    latent = {
        "w_dq": "self_attn.q_a_proj.weight",
        "b_dq": "self_attn.q_a_proj.bias",
        "q_norm": "self_attn.q_a_layernorm.weight",
        "w_uq": "self_attn.q_b_proj.weight",
        "w_dkv": "self_attn.kv_a_proj_with_mqa.weight",
        "b_dkv": "self_attn.kv_a_proj_with_mqa.bias",
        "kv_norm": "self_attn.kv_a_layernorm.weight",
    }
    found = usual(config, layer, {**latent, **routed(layer, shared="shared_experts")})
    found |= {w.name: _rebuilt(layer, w) for w in layer_weights(config, layer) if w.name in _KV}
    if isinstance(layer.ffn, Moe) and layer.ffn.routing.correction:
        tensor, shape = f"{LAYER}mlp.gate.e_score_correction_bias", (layer.ffn.n_experts,)
        correction = Stored(tensor=tensor, held=shape, view=shape, axes=(0,), shape=shape)
        found["router_correction"] = correction
    return found


_KV = ("w_uk", "w_uv")


def _rebuilt(layer: Layer, weight: Weight) -> Stored:
    """The keys' or the values' part of what the latent is rebuilt to, head by head."""
    attention = layer.attention
    if attention is None or attention.mla is None:
        raise BadShape(f"{weight.name} without a latent.")
    Hn, Hv = attention.mla.d_nope, attention.mla.d_v
    part = Part(axis=1, start=0, stop=Hn)
    if weight.name == "w_uv":
        part = Part(axis=1, start=Hn, stop=Hn + Hv)
    outputs = (attention.n_heads, Hn + Hv)
    return fused(weight, f"{LAYER}self_attn.kv_b_proj", outputs, part)
