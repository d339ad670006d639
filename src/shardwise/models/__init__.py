"""Models: what an architecture is, and every number that follows from it.

In: a preset name or a Hugging Face config.json. Out: a `ModelConfig`: groups of layers with their
order (`stack`) and what they compute (`numerics`). From it its weights as named arrays (`weights`),
what a layer saves for the backward pass (`activations`), and parameters, FLOPs and cache bytes
(`count`). Book: the Transformers chapter. Level 1: imports errors, units, arrays only.
"""

from shardwise.models.config import Attention, Layer, LayerGroup, Mamba, Mla, Mlp, Moe
from shardwise.models.hf import from_dict, load
from shardwise.models.model import ModelConfig
from shardwise.models.numerics import ClampedGlu, Norm, Rope, RopeScaling, Routing, Temperature
from shardwise.models.presets import names
from shardwise.models.stack import Segment, stack

__all__ = [
    "Attention",
    "ClampedGlu",
    "Layer",
    "LayerGroup",
    "Mamba",
    "Mla",
    "Mlp",
    "ModelConfig",
    "Moe",
    "Norm",
    "Rope",
    "RopeScaling",
    "Routing",
    "Segment",
    "Temperature",
    "from_dict",
    "load",
    "names",
    "stack",
]
