"""One file per family of config.json: its model types, and how its keys become layers.

A file placed here is found by itself. It defines `MODEL_TYPES` (values of "model_type"),
`ARCHITECTURES` (values of "architectures", for files without a model type),
`build(keys, name) -> ModelConfig`, and, for a family whose checkpoints are published, the tensors
in them: `OUTER` by our names of the weights around the layers, and
`layer_names(config, layer) -> dict[str, Stored]`.
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
from shardwise.models.stored import Stored

Builder = Callable[[Keys, str], ModelConfig]


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """How the checkpoints of a family name their tensors: around the layers, and in one of them."""

    outer: Mapping[str, str]
    layer: Callable[[ModelConfig, Layer], dict[str, Stored]]


@functools.cache
def builders() -> tuple[dict[str, Builder], dict[str, Builder]]:
    """Builders by model type and by architecture, found in this folder."""
    by_type: dict[str, Builder] = {}
    by_architecture: dict[str, Builder] = {}
    for family in _modules():
        by_type.update(dict.fromkeys(family.MODEL_TYPES, family.build))
        by_architecture.update(dict.fromkeys(family.ARCHITECTURES, family.build))
    return by_type, by_architecture


@functools.cache
def named() -> dict[str, Names]:
    """How tensors are named, by `ModelConfig.family`, where checkpoints are published."""
    return {
        kind: Names(outer=family.OUTER, layer=family.layer_names)
        for family in _modules()
        if hasattr(family, "OUTER")
        for kind in family.MODEL_TYPES
    }


def _modules() -> Iterator[ModuleType]:
    for path in sorted(Path(__file__).parent.glob("[a-z]*.py")):
        yield importlib.import_module(f"{__name__}.{path.stem}")
