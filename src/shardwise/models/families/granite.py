"""Granite 3 (dense, and with routed experts): factors of embeddings, residuals and logits."""

from __future__ import annotations

from shardwise.models.config import Attention, Layer, Mlp, Moe
from shardwise.models.families._layers import uniform_model
from shardwise.models.families._names import LAYER_PREFIX, fused_pair, llama_tensors
from shardwise.models.families._names import OUTER_NAMES as OUTER_NAMES
from shardwise.models.families._numbers import activation, expert_count, rms_norm, rope
from shardwise.models.keys import Keys
from shardwise.models.model import ModelConfig
from shardwise.models.numerics import Routing
from shardwise.models.tensor_layout import AxisSlice, TensorLayout
from shardwise.models.weights import Weight, layer_weights

MODEL_TYPES = ("granite", "granitemoe", "granitemoeshared")
ARCHITECTURES = ("GraniteForCausalLM", "GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM")


def build(keys: Keys, name: str) -> ModelConfig:
    """Build a model from the keys of GraniteConfig, GraniteMoeConfig or GraniteMoeSharedConfig."""
    N = keys.integer("num_attention_heads")
    bias = keys.flag("attention_bias", False)
    max_seq = keys.integer("max_position_embeddings", default=2048)
    attention = Attention(
        n_heads=N,
        n_kv_heads=keys.integer("num_key_value_heads", default=N),
        d_head=keys.head_dim(keys.integer("hidden_size"), N),
        q_bias=bias,
        kv_bias=bias,
        o_bias=bias,
        rotary=rope(keys, max_seq=max_seq),
        scale=keys.number("attention_multiplier", default=1.0),
    )
    family = "granite"
    ffn: Mlp | Moe
    if keys.is_type("granitemoe"):
        family = "granitemoeshared" if keys.is_type("granitemoeshared") else "granitemoe"
        ffn = _moe(keys, family)
    else:
        ffn = Mlp(
            d_ff=keys.integer("intermediate_size"),
            bias=keys.flag("mlp_bias", False),
            activation=activation(keys),
        )
    logits_scaling = keys.number("logits_scaling", default=1.0)
    if not logits_scaling:
        keys.add_problem(
            "logits_scaling is 0, and logits are divided by it. Give a number above 0."
        )
        logits_scaling = 1.0
    return uniform_model(
        keys,
        name,
        family,
        Layer(attention=attention, ffn=ffn),
        max_seq=max_seq,
        norm=rms_norm(keys),
        embedding_scale=keys.number("embedding_multiplier", default=1.0),
        residual_scale=keys.number("residual_multiplier", default=1.0),
        logit_scale=1 / logits_scaling,
    )


def _moe(keys: Keys, family: str) -> Moe:
    d_ff_shared = 0
    if family == "granitemoeshared":
        d_ff_shared = keys.integer("shared_intermediate_size", default=0, low=0)
    return Moe(
        n_experts=expert_count(keys, "num_local_experts", default=8),
        experts_per_token=keys.integer("num_experts_per_tok", default=2),
        d_ff=keys.integer("intermediate_size"),
        n_shared_experts=int(d_ff_shared > 0),
        d_ff_shared=d_ff_shared,
        activation=activation(keys),
        routing=Routing(aux_loss=keys.number("router_aux_loss_coef", default=0.001)),
    )


def layer_tensors(config: ModelConfig, layer: Layer) -> dict[str, TensorLayout]:
    """Layouts of a layer's weights; experts are stacked, and input_linear has gate, then up."""
    names = {
        "router": "block_sparse_moe.router.layer.weight",
        "shared_down": "shared_mlp.output_linear.weight",
    }
    layouts = llama_tensors(config, layer, names)
    if not isinstance(layer.ffn, Moe):
        return layouts
    for weight in layer_weights(config, layer):
        if weight.per_expert:
            layouts[weight.name] = _stacked(weight)
    shared = f"{LAYER_PREFIX}shared_mlp.input_linear"
    return layouts | fused_pair(config, layer, shared, "shared_gate", "shared_up")


def _stacked(weight: Weight) -> TensorLayout:
    """Layout of the matrices of all experts in a tensor [experts, outputs, inputs]."""
    E, inputs, outputs = weight.shape
    module = "output_linear"
    part = None
    file_shape = (E, outputs, inputs)
    if weight.name != "w_down":
        module = "input_linear"
        start = outputs if weight.name == "w_up" else 0
        part = AxisSlice(axis=1, start=start, stop=start + outputs)
        file_shape = (E, 2 * outputs, inputs)
    return TensorLayout(
        tensor_name=f"{LAYER_PREFIX}block_sparse_moe.{module}.weight",
        file_shape=file_shape,
        view_shape=file_shape,
        axis_slice=part,
        axes=(0, 2, 1),
        shape=weight.shape,
    )
