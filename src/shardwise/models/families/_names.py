"""Names of tensors that most families share, and projections that some of them fuse."""

from __future__ import annotations

import math
from collections.abc import Mapping

from shardwise.models.config import Layer, Moe
from shardwise.models.model import ModelConfig
from shardwise.models.stored import Part, Stored, inputs_first, stored
from shardwise.models.weights import Weight, layer_weights

LAYER = "model.layers.{layer}."

OUTER = {
    "embedding": "model.embed_tokens.weight",
    "final_norm": "model.norm.weight",
    "unembedding": "lm_head.weight",
}

_ATTENTION = {
    **{f"w{x}": f"self_attn.{x}_proj.weight" for x in "qkvo"},
    **{f"b{x}": f"self_attn.{x}_proj.bias" for x in "qkvo"},
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
    "sinks": "self_attn.sinks",
}

_NORMS = {
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


def usual(
    config: ModelConfig,
    layer: Layer,
    changes: Mapping[str, str] | None = None,
    *,
    block: str = "mlp",
) -> dict[str, Stored]:
    """Each weight of a layer as a tensor of its own, by the names of Llama.

    Args:
        config: The model.
        layer: One of its layers.
        changes: Names, after that of the layer, of weights that are called otherwise. Weights that
            neither they nor Llama name are left out.
        block: What the feed-forward block is called.
    """
    names = {**_ATTENTION, **_gated(block), **norms(layer), **(changes or {})}
    return alone(config, layer, LAYER, names)


def alone(
    config: ModelConfig, layer: Layer, prefix: str, names: Mapping[str, str]
) -> dict[str, Stored]:
    """The weights of a layer that have a tensor of their own, among `names`."""
    return {
        weight.name: stored(weight, prefix + names[weight.name])
        for weight in layer_weights(config, layer)
        if weight.name in names
    }


def norms(layer: Layer) -> dict[str, str]:
    """Scales and biases of norms of width D."""
    found = _NORMS[layer.norms]
    scales = {ours: f"{theirs}.weight" for ours, theirs in found.items()}
    return scales | {f"b_{ours}": f"{theirs}.bias" for ours, theirs in found.items()}


def out_projections(attention: str) -> dict[str, str]:
    """Output and feed-forward projections of GPT-NeoX and Falcon, with their biases."""
    modules = {"o": f"{attention}.dense", "_up": "mlp.dense_h_to_4h", "_down": "mlp.dense_4h_to_h"}
    return {
        f"{letter}{ours}": f"{theirs}.{kind}"
        for ours, theirs in modules.items()
        for letter, kind in (("w", "weight"), ("b", "bias"))
    }


def _gated(block: str) -> dict[str, str]:
    parts = ("gate", "up", "down")
    weights = {f"w_{part}": f"{block}.{part}_proj.weight" for part in parts}
    return weights | {f"b_{part}": f"{block}.{part}_proj.bias" for part in parts}


def routed(layer: Layer, block: str = "mlp", shared: str = "") -> dict[str, str]:
    """Names of a routed block whose experts have tensors of their own; {} for another block.

    Args:
        layer: The layer.
        block: What the block is called.
        shared: What its shared experts are called.
    """
    if not isinstance(layer.ffn, Moe):
        return {}
    names = {"router": f"{block}.gate.weight"}
    for part in ("gate", "up", "down"):
        names[f"w_{part}"] = f"{block}.experts.{{expert}}.{part}_proj.weight"
        names[f"shared_{part}"] = f"{block}.{shared}.{part}_proj.weight"
    return names


def halves(weight: Weight, tensor: str, *, interleaved: bool) -> Stored:
    """The gate (or its bias) or the up projection of all experts, from one tensor of both.

    Args:
        weight: Of dims E D F or E F, as they stand in the tensor.
        tensor: Its name.
        interleaved: Gate and up take turns; otherwise the gate stands before.
    """
    *leading, F = weight.shape
    second, axis = int("up" in weight.name), len(leading)
    start, step = (second, 2) if interleaved else (second * F, 1)
    stop = 2 * F if interleaved else start + F
    return Stored(
        tensor=tensor,
        held=(*leading, 2 * F),
        view=(*leading, 2 * F),
        part=Part(axis=axis, start=start, stop=stop, step=step),
        axes=tuple(range(len(weight.shape))),
        shape=weight.shape,
    )


def fused_groups(config: ModelConfig, layer: Layer, module: str) -> dict[str, Stored]:
    """Queries, keys and values as one matrix: for each key head its queries, the key, the value."""
    found = {}
    for weight in layer_weights(config, layer):
        kind = _kind(weight)
        if kind and layer.attention:
            K, H = layer.attention.n_kv_heads, layer.attention.d_head
            G = layer.attention.n_heads // K
            start, stop = {"q": (0, G), "k": (G, G + 1), "v": (G + 1, G + 2)}[kind]
            part = Part(axis=1, start=start, stop=stop)
            found[weight.name] = fused(weight, module, (K, G + 2, H), part)
    return found


def fused(weight: Weight, module: str, outputs: tuple[int, ...], part: Part) -> Stored:
    """A part of what one matrix, or its bias, writes.

    Args:
        weight: A projection of width D, or its bias.
        module: The module of the matrix.
        outputs: What it writes, dim by dim.
        part: What of it the weight is.
    """
    inputs = weight.shape[:1] if weight.matmul else ()
    view = (*outputs, *inputs)
    return Stored(
        tensor=f"{module}.{'weight' if weight.matmul else 'bias'}",
        held=(math.prod(outputs), *inputs),
        view=view,
        part=part,
        axes=inputs_first(view, len(outputs)),
        shape=weight.shape,
    )


def _kind(weight: Weight) -> str:
    """ "q", "k" or "v" for a projection of them or its bias."""
    return weight.name[1] if weight.name in ("wq", "wk", "wv", "bq", "bk", "bv") else ""
