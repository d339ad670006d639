"""Tensor names that most families share, and layouts of fused projections."""

from __future__ import annotations

import math
from collections.abc import Mapping

from shardwise.models.config import Layer, Moe
from shardwise.models.model import ModelConfig
from shardwise.models.tensor_layout import AxisSlice, TensorLayout, default_layout, inputs_first
from shardwise.models.weights import Weight, layer_weights

LAYER_PREFIX = "model.layers.{layer}."

# Weight -> tensor name, for the weights outside the layers, in Llama and most other families.
OUTER_NAMES = {
    "embedding": "model.embed_tokens.weight",
    "final_norm": "model.norm.weight",
    "b_final_norm": "model.norm.bias",
    "unembedding": "lm_head.weight",
}

_ATTENTION_NAMES = {
    **{f"w{letter}": f"self_attn.{letter}_proj.weight" for letter in "qkvo"},
    **{f"b{letter}": f"self_attn.{letter}_proj.bias" for letter in "qkvo"},
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
    "sinks": "self_attn.sinks",
}

# `Layer.norms` -> weight -> module name, for the norms of width D.
_NORM_MODULES = {
    "pre": {"attention_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"},
    "post": {
        "post_attention_norm": "post_attention_layernorm",
        "post_ffn_norm": "post_feedforward_layernorm",
    },
    "both": {
        "attention_norm": "input_layernorm",
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffn_norm": "post_feedforward_layernorm",
    },
    "shared": {"attention_norm": "input_layernorm"},
}


def llama_tensors(
    config: ModelConfig,
    layer: Layer,
    changes: Mapping[str, str] | None = None,
    *,
    ffn_module: str = "mlp",
) -> dict[str, TensorLayout]:
    """Layouts of a layer's weights if each has a separate tensor, named as in Llama.

    A weight that neither Llama nor `changes` has is left out.

    Args:
        config: The model.
        layer: One of its layers.
        changes: Weight -> tensor name without the layer prefix, where it differs from Llama's.
        ffn_module: Module name of the feed-forward block.
    """
    names = {**_ATTENTION_NAMES, **_gated_mlp_names(ffn_module), **norm_names(layer)}
    names.update(changes or {})
    return separate_tensors(config, layer, LAYER_PREFIX, names)


def separate_tensors(
    config: ModelConfig, layer: Layer, prefix: str, names: Mapping[str, str]
) -> dict[str, TensorLayout]:
    """Layouts of the weights in `names` (weight -> tensor name), each in a separate tensor."""
    layouts = {}
    for weight in layer_weights(config, layer):
        if weight.name in names:
            layouts[weight.name] = default_layout(weight, prefix + names[weight.name])
    return layouts


def norm_names(layer: Layer) -> dict[str, str]:
    """Weight -> tensor name, for the scales and biases of a layer's norms of width D."""
    return parameter_names(_NORM_MODULES[layer.norms], scale_prefix="", bias_prefix="b_")


def parameter_names(
    modules: Mapping[str, str], *, scale_prefix: str, bias_prefix: str
) -> dict[str, str]:
    """Weight -> tensor name, for the scale (or matrix) and the bias of each module.

    Args:
        modules: key -> module name.
        scale_prefix, bias_prefix: prefixes that make weight names of a key.
    """
    names = {}
    for key, module in modules.items():
        names[scale_prefix + key] = f"{module}.weight"
        names[bias_prefix + key] = f"{module}.bias"
    return names


def output_and_mlp_names(attention_module: str) -> dict[str, str]:
    """Weight -> tensor name, for the output and MLP projections of GPT-NeoX and Falcon."""
    modules = {
        "o": f"{attention_module}.dense",
        "_up": "mlp.dense_h_to_4h",
        "_down": "mlp.dense_4h_to_h",
    }
    return parameter_names(modules, scale_prefix="w", bias_prefix="b")


def _gated_mlp_names(module: str) -> dict[str, str]:
    modules = {part: f"{module}.{part}_proj" for part in ("gate", "up", "down")}
    return parameter_names(modules, scale_prefix="w_", bias_prefix="b_")


def expert_names(layer: Layer, ffn_module: str = "mlp", shared_module: str = "") -> dict[str, str]:
    """Weight -> tensor name, for a routed block with separate tensors per expert.

    {} if the layer has no routed block.
    """
    if not isinstance(layer.ffn, Moe):
        return {}
    names = {"router": f"{ffn_module}.gate.weight"}
    for part in ("gate", "up", "down"):
        names[f"w_{part}"] = f"{ffn_module}.experts.{{expert}}.{part}_proj.weight"
        names[f"shared_{part}"] = f"{ffn_module}.{shared_module}.{part}_proj.weight"
    return names


def fused_gate_up(weight: Weight, tensor_name: str, *, interleaved: bool) -> TensorLayout:
    """Layout of the experts' gate or up projection, or its bias, in a tensor that fuses both.

    Args:
        weight: Weight [E, D, F] or bias [E, F]; the tensor has the same dims, with 2 F columns.
        tensor_name: Name of the tensor.
        interleaved: Whether columns of gate and up alternate; otherwise the gate comes first.
    """
    *leading, F = weight.shape
    file_shape = (*leading, 2 * F)
    column = int("up" in weight.name)
    part = AxisSlice(axis=len(leading), start=column * F, stop=(column + 1) * F)
    if interleaved:
        part = AxisSlice(axis=len(leading), start=column, stop=2 * F, step=2)
    return TensorLayout(
        tensor_name=tensor_name,
        file_shape=file_shape,
        view_shape=file_shape,
        axis_slice=part,
        axes=tuple(range(len(weight.shape))),
        shape=weight.shape,
    )


def fused_pair(
    config: ModelConfig, layer: Layer, module: str, first: str, second: str
) -> dict[str, TensorLayout]:
    """Layouts of two projections from D, one after the other in the fused matrix of `module`."""
    layouts = {}
    for weight in layer_weights(config, layer):
        if weight.name in (first, second):
            width = weight.shape[-1]
            start = width if weight.name == second else 0
            part = AxisSlice(axis=0, start=start, stop=start + width)
            layouts[weight.name] = fused_projection(weight, module, (2 * width,), part)
    return layouts


def fused_qkv(config: ModelConfig, layer: Layer, module: str) -> dict[str, TensorLayout]:
    """Layouts of wq, wk, wv and their biases in the fused matrix of GPT-NeoX and Falcon.

    For each key head the matrix has the outputs of its G query heads, then the key, then the value.
    """
    if layer.attention is None:
        return {}
    K = layer.attention.n_kv_heads
    H = layer.attention.d_head
    G = layer.attention.n_heads // K
    heads = {"q": (0, G), "k": (G, G + 1), "v": (G + 1, G + 2)}
    layouts = {}
    for weight in layer_weights(config, layer):
        if weight.name in ("wq", "wk", "wv", "bq", "bk", "bv"):
            start, stop = heads[weight.name[1]]
            part = AxisSlice(axis=1, start=start, stop=stop)
            layouts[weight.name] = fused_projection(weight, module, (K, G + 2, H), part)
    return layouts


def fused_projection(
    weight: Weight, module: str, outputs: tuple[int, ...], part: AxisSlice
) -> TensorLayout:
    """Layout of a projection, or its bias, in a matrix that fuses several projections.

    Args:
        weight: The projection, whose first dim is its input, or its bias.
        module: Module of the fused matrix.
        outputs: Shape of the outputs of all fused projections.
        part: Slice of these outputs that belongs to the weight.
    """
    inputs = weight.shape[:1] if weight.is_matmul else ()
    view = (*outputs, *inputs)
    return TensorLayout(
        tensor_name=f"{module}.{'weight' if weight.is_matmul else 'bias'}",
        file_shape=(math.prod(outputs), *inputs),
        view_shape=view,
        axis_slice=part,
        axes=inputs_first(view, len(outputs)),
        shape=weight.shape,
    )
