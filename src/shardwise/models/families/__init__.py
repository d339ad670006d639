"""Model families: each file reads the config.json of some model types.

A new file in this folder is discovered automatically. It defines `MODEL_TYPES` (values of
"model_type"), `ARCHITECTURES` (values of "architectures", for files without a model type) and
`build(keys, name) -> ModelConfig`. A family with published checkpoints also defines `OUTER_NAMES`,
tensor names of the weights outside the layers, and
`layer_tensors(config, layer) -> dict[str, TensorLayout]`, both by weight name.
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
        outer_names: Tensor names of the weights outside the layers, by weight name.
        layer_tensors: Returns the layouts of one layer's weights, by weight name.
    """

    outer_names: Mapping[str, str]
    layer_tensors: Callable[[ModelConfig, Layer], dict[str, TensorLayout]]


@functools.cache
def builders() -> tuple[dict[str, Builder], dict[str, Builder]]:
    """Builders of all families, by model type and by architecture."""
    by_type: dict[str, Builder] = {}
    by_architecture: dict[str, Builder] = {}
    for family in _modules():
        by_type.update(dict.fromkeys(family.MODEL_TYPES, family.build))
        by_architecture.update(dict.fromkeys(family.ARCHITECTURES, family.build))
    return by_type, by_architecture


@functools.cache
def checkpoint_formats() -> dict[str, CheckpointFormat]:
    """Formats of published checkpoints by `ModelConfig.family`."""
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
