"""Multi-token prediction (MTP): layers after the model, each of which predicts one token more.

An MTP layer norms the residual of the layer before it and the embedding of the next token, joins
both by a projection [2D -> D], runs a Transformer layer and a norm, and shares the model's
embedding and unembedding. DeepSeek-V3, arXiv 2412.19437, section 2.2; Megatron Core,
`transformer/multi_token_prediction.py`.
"""

from __future__ import annotations

import functools
from dataclasses import replace

from shardwise.models.config import LayerGroup
from shardwise.models.model import ModelConfig
from shardwise.models.weights import Weight, layer_weights

VECTORS = ("residual_norm", "embedding_norm", "final_norm")


@functools.lru_cache(maxsize=64)
def mtp_groups(config: ModelConfig) -> tuple[int, ...]:
    """Indices of the layer groups of which an MTP layer has one layer each.

    It is the most common group. In a model whose layers have one block each, these are the most
    common group with attention and the most common one with a feed-forward block.
    """
    counts = [group.count for group in config.groups]
    layers = [group.layer for group in config.groups]
    main = counts.index(max(counts))
    if layers[main].has_both:
        return (main,)
    indices = []
    for has_block in (
        [layer.attention is not None for layer in layers],
        [layer.ffn is not None for layer in layers],
    ):
        if any(has_block):
            indices.append(max(range(len(counts)), key=lambda i: has_block[i] * counts[i]))
    return tuple(dict.fromkeys(indices or [main]))


@functools.lru_cache(maxsize=64)
def mtp_model(config: ModelConfig) -> ModelConfig:
    """The model with the Transformer layer of one MTP layer in the place of all its layers."""
    layers = [config.groups[index].layer for index in mtp_groups(config)]
    groups = tuple(LayerGroup(layer=layer, count=1) for layer in layers)
    return replace(config, groups=groups, order=())


@functools.lru_cache(maxsize=64)
def joint_weights(config: ModelConfig) -> tuple[Weight, ...]:
    """The projection and the norms of one MTP layer, outside its Transformer layer."""
    D = config.d_model
    weights = [
        Weight(name="projection", dims=("D", "F"), shape=(2 * D, D), part="mlp", is_matmul=True)
    ]
    for name in VECTORS:
        weights.append(Weight(name=name, dims=("D",), shape=(D,), part="norm", is_matmul=False))
    return tuple(weights)


@functools.lru_cache(maxsize=64)
def mtp_weights(config: ModelConfig) -> tuple[Weight, ...]:
    """All weights of one MTP layer that it does not share with the model."""
    weights: list[Weight] = []
    for group in mtp_model(config).groups:
        weights += layer_weights(config, group.layer)
    return (*weights, *joint_weights(config))


def mtp_parameters(config: ModelConfig) -> int:
    """Number of parameters of one MTP layer, without the shared embedding and unembedding.

    That of DeepSeek-V3 has 11.6 B:

    >>> from shardwise.models import load
    >>> mtp_parameters(load("deepseek-v3"))
    11610067968
    """
    return sum(weight.size for weight in mtp_weights(config))
