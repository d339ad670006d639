"""Model families: each file reads the config.json of some model types.

A new file in this folder is found automatically. It defines

- `MODEL_TYPES`: the values of "model_type" that it reads;
- `ARCHITECTURES`: values of "architectures", for a config.json without a model type;
- `build(keys, name) -> ModelConfig`;

and if the family has published checkpoints,

- `OUTER_NAMES`: weight -> tensor name, for weights outside the layers;
- `layer_tensors(config, layer) -> dict[str, TensorLayout]`: weight -> layout, for one layer.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from shardwise.models.config import Layer
from shardwise.models.keys import Keys
from shardwise.models.model import ModelConfig
from shardwise.models.tensor_layout import TensorLayout

Builder = Callable[[Keys, str], ModelConfig]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFormat:
    """Tensor names and layouts in the checkpoints of a family.

    Args:
        outer_names: Weight -> tensor name, for the weights outside the layers.
        layer_tensors: Function of a model and a layer that returns weight -> layout.
    """

    outer_names: Mapping[str, str]
    layer_tensors: Callable[[ModelConfig, Layer], dict[str, TensorLayout]]


@functools.cache
def builders() -> tuple[dict[str, Builder], dict[str, Builder]]:
    """The `build` functions of all families: by model type, and by architecture."""
    by_type: dict[str, Builder] = {}
    by_architecture: dict[str, Builder] = {}
    for family in _modules():
        by_type.update(dict.fromkeys(family.MODEL_TYPES, family.build))
        by_architecture.update(dict.fromkeys(family.ARCHITECTURES, family.build))
    return by_type, by_architecture


@functools.cache
def checkpoint_formats() -> dict[str, CheckpointFormat]:
    """The formats of published checkpoints, by `ModelConfig.family`."""
    formats = {}
    for family in _modules():
        if hasattr(family, "OUTER_NAMES"):
            checkpoint = CheckpointFormat(
                outer_names=family.OUTER_NAMES, layer_tensors=family.layer_tensors
            )
            formats.update(dict.fromkeys(family.MODEL_TYPES, checkpoint))
    return formats


def _modules() -> Iterator[ModuleType]:
    for path in sorted(Path(__file__).parent.glob("[a-z]*.py")):
        yield importlib.import_module(f"{__name__}.{path.stem}")
