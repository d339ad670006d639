"""A complete serving record of the published schema, for tests to change."""

from __future__ import annotations

from typing import Any

from tests.unit.validate.record import moe as moe_training
from tests.unit.validate.record import record as training


def serving(**changes: Any) -> dict[str, Any]:
    """A small dense model on 8 H100; keys `part__key` change one entry of an object."""
    made: dict[str, Any] = {
        "id": "test-serve",
        "source": {"repo": "someone/engine"},
        "date": "2026-01-01",
        "group": "test|tiny|H100",
        "quality": "A",
        "tier": "core",
        "model": training()["model"],
        "hardware": {"family": "H100", "count": 8, "chips_per_node": 8},
        "precision": {"weights": "fp8", "compute": "fp8"},
        "parallelism": {"tp": 4, "pp": 1, "dp": 2},
        "framework": "vLLM 0.19.0",
        "phase": "end-to-end",
        "concurrency": 16,
        "input_len": 1024,
        "output_len": 256,
        "measured": {"ttft_ms": 100.0, "tpot_ms": 10.0, "tokens_per_s": 1500.0},
    }
    for name, value in changes.items():
        part, inside, key = name.partition("__")
        made[part] = {**made[part], key: value} if inside else value
    return made


def routed(**changes: Any) -> dict[str, Any]:
    """The same with 16 experts."""
    return serving(**{"model": moe_training()["model"], **changes})
