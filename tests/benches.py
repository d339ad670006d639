"""Scripts under `bench/`, imported as when they are run."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).parents[1] / "bench"


def imported(monkeypatch: pytest.MonkeyPatch, *names: str) -> tuple[ModuleType, ...]:
    """Fresh modules of these names, and of what they share."""
    monkeypatch.syspath_prepend(str(BENCH))
    for name in ("kept", *names):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tuple(importlib.import_module(name) for name in names)
