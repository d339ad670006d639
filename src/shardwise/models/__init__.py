"""Models: what an architecture is, and every number that follows from it.

In: a preset name or a Hugging Face config.json. Out: a `ModelConfig`, its weights as named arrays
(`weights`), what a layer saves for the backward pass (`activations`), and parameters, FLOPs and
cache bytes (`count`). Book: the Transformers chapter. Level 1: imports errors, units, arrays only.
"""

from shardwise.models.config import Attention, Layer, LayerGroup, Mamba, Mla, Mlp, Moe
from shardwise.models.hf import from_dict, load
from shardwise.models.model import ModelConfig
from shardwise.models.presets import names

__all__ = [
    "Attention",
    "Layer",
    "LayerGroup",
    "Mamba",
    "Mla",
    "Mlp",
    "ModelConfig",
    "Moe",
    "from_dict",
    "load",
    "names",
]
