"""Models: descriptions of architectures, and every number that follows from them.

In: a preset name or a Hugging Face config.json. Out: a `ModelConfig`, which has groups of equal
layers, their order (`stack`) and their arithmetic (`numerics`). Derived from it are the weights as
named arrays (`weights`), the arrays that a layer saves for the backward pass (`activations`), and
parameters, FLOPs and cache bytes (`count`). Book: the Transformers chapter. Level 1: imports
errors, units and arrays only.
"""

from shardwise.models.config import Attention, Layer, LayerGroup, Mamba, Mla, Mlp, Moe
from shardwise.models.hf import from_dict, load
from shardwise.models.model import ModelConfig, stack
from shardwise.models.numerics import ClampedGlu, Norm, Rope, RopeScaling, Routing, Temperature
from shardwise.models.presets import names
from shardwise.models.stack import Segment

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
