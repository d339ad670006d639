"""One file per family of config.json: its model types, and how its keys become layers.

A file placed here is found by itself. It defines `MODEL_TYPES` (values of "model_type"),
`ARCHITECTURES` (values of "architectures", for files without a model type) and
`build(keys, name) -> ModelConfig`.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from pathlib import Path

from shardwise.models.keys import Keys
from shardwise.models.model import ModelConfig

Builder = Callable[[Keys, str], ModelConfig]


@functools.cache
def builders() -> tuple[dict[str, Builder], dict[str, Builder]]:
    """Builders by model type and by architecture, found in this folder."""
    by_type: dict[str, Builder] = {}
    by_architecture: dict[str, Builder] = {}
    for path in sorted(Path(__file__).parent.glob("[a-z]*.py")):
        family = importlib.import_module(f"{__name__}.{path.stem}")
        by_type.update(dict.fromkeys(family.MODEL_TYPES, family.build))
        by_architecture.update(dict.fromkeys(family.ARCHITECTURES, family.build))
    return by_type, by_architecture
