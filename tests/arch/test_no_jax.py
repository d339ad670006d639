"""The core plans without JAX: not by habit, but by this test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.arch import fresh

# Prints the heavy modules that importing every module of the core has loaded.
CHECK = f"""
import importlib, pkgutil, sys, shardwise
for room in {fresh.CORE!r}:
    module = importlib.import_module(f"shardwise.{{room}}")
    for found in pkgutil.walk_packages(getattr(module, "__path__", []), f"shardwise.{{room}}."):
        importlib.import_module(found.name)
print(shardwise.__file__)
sys.exit(" ".join({{"jax", "jaxlib", "torch", "transformers"}} & set(sys.modules)) or 0)
"""


def test_core_imports_no_jax() -> None:
    code, text = fresh.run("-c", CHECK)
    assert code == 0, text


def test_check_is_imported_without_jax() -> None:
    """So that it can say which extra to install."""
    code, text = fresh.run("-c", "import sys, shardwise.check.api; sys.exit('jax' in sys.modules)")
    assert code == 0, text


@pytest.mark.parametrize("module", ["arrays.py", "plan", "ops"])
def test_the_check_can_fail(tmp_path: Path, module: str) -> None:
    src = fresh.copy_of_package(tmp_path)
    (src / "jax.py").write_text("")
    if not module.endswith(".py"):
        module = (
            f"{module}/__init__.py" if (src / "shardwise" / module).is_dir() else f"{module}.py"
        )
    fresh.spoil(src, module, "import jax")
    code, text = fresh.run("-c", CHECK, src=src)
    assert code == 1
    assert text.splitlines()[0].startswith(str(src)), "the copy was not what was imported"
    assert text.splitlines()[-1] == "jax"
