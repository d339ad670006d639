"""DeepSeek-V2 and V3: latent attention; dense layers, then layers with shared and routed experts.

The load-balancing bias of V3's router is a running statistic, not a parameter. The multi-token
prediction layers of V3 are not counted as part of the model.
"""

from __future__ import annotations

from shardwise.errors import BadShape
from shardwise.models.config import Attention, Layer, Mla, Mlp, Moe
from shardwise.models.families._layers import layer_groups, layer_order
from shardwise.models.families._names import (
    LAYER_PREFIX,
    expert_names,
    fused_projection,
    llama_tensors,
)
from shardwise.models.families._names import OUTER_NAMES as OUTER_NAMES
from shardwise.models.families._numbers import (
    activation,
    expert_count,
    rms_norm,
    rope,
    rope_scaling_keys,
    yarn_mscale,
)
from shardwise.models.keys import Keys
from shardwise.models.model import ModelConfig
from shardwise.models.numerics import Rope, Routing
from shardwise.models.tensor_layout import AxisSlice, TensorLayout
from shardwise.models.weights import Weight, layer_weights

MODEL_TYPES = ("deepseek_v2", "deepseek_v3")
ARCHITECTURES = ("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM")

_DEFAULTS = {
    "deepseek_v2": {
        "max_position_embeddings": 2048,
        "first_k_dense_replace": 0,
        "moe_intermediate_size": 1407,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "routed_scaling_factor": 1.0,
    },
    "deepseek_v3": {
        "max_position_embeddings": 4096,
        "first_k_dense_replace": 3,
        "moe_intermediate_size": 2048,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "n_group": 8,
        "topk_group": 4,
        "routed_scaling_factor": 2.5,
    },
}


def build(keys: Keys, name: str) -> ModelConfig:
    """Build a model from the keys of DeepseekV2Config or DeepseekV3Config."""
    is_v3 = keys.is_type("deepseek_v3")
    family = "deepseek_v3" if is_v3 else "deepseek_v2"
    keys.set_defaults(_DEFAULTS[family])
    mlp_bias = not is_v3 and keys.flag("mlp_bias", False)
    max_seq = keys.integer("max_position_embeddings")
    attention = _attention(keys, is_v3, max_seq)
    mlp = Mlp(d_ff=keys.integer("intermediate_size"), bias=mlp_bias, activation=activation(keys))
    layers = {
        False: Layer(attention=attention, ffn=mlp),
        True: Layer(attention=attention, ffn=routed_experts(keys, is_v3=is_v3)),
    }
    n_dense = keys.integer("first_k_dense_replace", low=0)
    period = keys.integer("moe_layer_freq", default=1)
    n_layers = keys.layer_count("num_hidden_layers")
    routed_flags = [i >= n_dense and i % period == 0 for i in range(n_layers)]
    return ModelConfig(
        name=name,
        family=family,
        d_model=keys.integer("hidden_size"),
        vocab=keys.integer("vocab_size"),
        groups=layer_groups(routed_flags, layers.__getitem__),
        order=layer_order(routed_flags),
        tied_embeddings=keys.flag("tie_word_embeddings", False),
        max_seq=max_seq,
        norm=rms_norm(keys),
    )


def _attention(keys: Keys, is_v3: bool, max_seq: int) -> Attention:
    N = keys.integer("num_attention_heads")
    bias = keys.flag("attention_bias", False)
    keys.optional_integer("num_key_value_heads")  # equals N: each head has its own key and value
    for restated in ("head_dim", "qk_head_dim"):  # of widths below, which transformers writes too
        keys.optional_integer(restated)
    mla = Mla(
        q_lora_rank=keys.optional_integer("q_lora_rank", 1536),
        kv_lora_rank=keys.integer("kv_lora_rank", default=512),
        d_nope=keys.integer("qk_nope_head_dim", default=128),
        d_rope=keys.integer("qk_rope_head_dim", default=64),
        d_v=keys.integer("v_head_dim", default=128),
    )
    d_head = mla.d_nope + mla.d_rope
    interleaved = not is_v3 or keys.flag("rope_interleave", True)
    rotary = rope(keys, max_seq=max_seq, interleaved=interleaved)
    return Attention(
        n_heads=N,
        n_kv_heads=N,
        d_head=d_head,
        mla=mla,
        q_bias=bias,
        kv_bias=bias,
        o_bias=bias,
        rotary=rotary,
        scale=_score_scale(keys, rotary, d_head),
    )


def _score_scale(keys: Keys, rotary: Rope, d_head: int) -> float | None:
    """Factor of the scores under YaRN, mscale^2 / sqrt(d_head); None without YaRN."""
    scaling_keys = rope_scaling_keys(keys)
    if scaling_keys is None:
        return None
    mscale_all_dim = scaling_keys.number("mscale_all_dim", default=0.0)
    if rotary.scaling is None or not mscale_all_dim:
        return None
    mscale = yarn_mscale(rotary.scaling.factor, mscale_all_dim)
    return float(d_head**-0.5 * mscale * mscale)


def routed_experts(keys: Keys, *, is_v3: bool) -> Moe:
    """Read the routed and shared experts of a layer; `is_v3` selects the routing of V3."""
    d_ff = keys.integer("moe_intermediate_size")
    n_shared_experts = keys.integer("n_shared_experts", low=0)
    return Moe(
        n_experts=expert_count(keys, "n_routed_experts"),
        experts_per_token=keys.integer("num_experts_per_tok"),
        d_ff=d_ff,
        n_shared_experts=n_shared_experts,
        d_ff_shared=n_shared_experts * d_ff,
        activation=activation(keys),
        routing=_routing(keys, is_v3),
    )


def _routing(keys: Keys, is_v3: bool) -> Routing:
    """Routing: V3 has groups, sigmoid scores and a correction, V2 a softmax, not normalised."""
    scale = keys.number("routed_scaling_factor", default=1.0)
    n_groups = keys.optional_integer("n_group") or 1
    top_groups = keys.optional_integer("topk_group") or 1
    if is_v3:
        return Routing(
            score="sigmoid",
            normalized=keys.flag("norm_topk_prob", True),
            correction=True,
            n_groups=n_groups,
            top_groups=top_groups,
            group_best=2,
            scale=scale,
        )
    if keys.text("topk_method", "greedy") != "group_limited_greedy":
        n_groups = 1
        top_groups = 1
    return Routing(
        normalized=False,
        n_groups=n_groups,
        top_groups=top_groups,
        scale=scale,
        aux_loss=keys.number("aux_loss_alpha", default=0.0),
    )


_LATENT_NAMES = {
    "w_dq": "self_attn.q_a_proj.weight",
    "b_dq": "self_attn.q_a_proj.bias",
    "q_norm": "self_attn.q_a_layernorm.weight",
    "w_uq": "self_attn.q_b_proj.weight",
    "w_dkv": "self_attn.kv_a_proj_with_mqa.weight",
    "b_dkv": "self_attn.kv_a_proj_with_mqa.bias",
    "kv_norm": "self_attn.kv_a_layernorm.weight",
}


def layer_tensors(config: ModelConfig, layer: Layer) -> dict[str, TensorLayout]:
    """Layouts of a layer's weights; kv_b_proj fuses w_uk and w_uv."""
    names = {**_LATENT_NAMES, **expert_names(layer, shared_module="shared_experts")}
    layouts = llama_tensors(config, layer, names)
    for weight in layer_weights(config, layer):
        if weight.name in ("w_uk", "w_uv"):
            layouts[weight.name] = _up_projection(layer, weight)
    return layouts | correction_layout(layer)


def correction_layout(layer: Layer) -> dict[str, TensorLayout]:
    """Layout of the correction of a router's scores; {} if the layer has none."""
    if not (isinstance(layer.ffn, Moe) and layer.ffn.routing.correction):
        return {}
    shape = (layer.ffn.n_experts,)
    layout = TensorLayout(
        tensor_name=f"{LAYER_PREFIX}mlp.gate.e_score_correction_bias",
        file_shape=shape,
        view_shape=shape,
        axes=(0,),
        shape=shape,
    )
    return {"router_correction": layout}


def _up_projection(layer: Layer, weight: Weight) -> TensorLayout:
    """Layout of w_uk or w_uv in kv_b_proj, which has the key and the value for each head."""
    attention = layer.attention
    if attention is None or attention.mla is None:
        raise BadShape(f"{weight.name} without a latent.")
    Hn = attention.mla.d_nope
    Hv = attention.mla.d_v
    part = AxisSlice(axis=1, start=0, stop=Hn)
    if weight.name == "w_uv":
        part = AxisSlice(axis=1, start=Hn, stop=Hn + Hv)
    outputs = (attention.n_heads, Hn + Hv)
    return fused_projection(weight, f"{LAYER_PREFIX}self_attn.kv_b_proj", outputs, part)
