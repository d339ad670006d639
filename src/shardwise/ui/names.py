"""Names that the page offers: models, and machines of each chip."""

from __future__ import annotations

import functools

from shardwise.hardware.catalog import chip_names
from shardwise.models.presets import names as model_names
from shardwise.ui.question import LocalNames

# Machines that people ask for; any other that exists can be typed.
MACHINES = (
    "v5p:16x20x28",
    "v5p:4x4x4",
    "v5p:8x8x8",
    "v5e:4x4",
    "v5e:16x16",
    "v6e:16x16",
    "v4:8x8x8",
    "h100:8",
    "h100:64",
    "h100:1024",
    "h100:16384",
    "h200:8",
    "b200:8",
)


@functools.cache
def _catalog() -> tuple[list[str], list[str]]:
    return [*model_names()], [*chip_names()]


def offered_names(local: LocalNames) -> dict[str, list[str]]:
    """Models, machines and chips, those of the command line first."""
    models, chips = _catalog()
    return {
        "models": [*local.models, *(name for name in models if name not in local.models)],
        "machines": [*local.systems, *(name for name in MACHINES if name not in local.systems)],
        "chips": chips,
    }
