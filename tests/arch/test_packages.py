"""No test package takes the name of a module that others import, as `profile` or `http`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT


def root_packages(tests: Path) -> set[str]:
    """The folders under `tests` that Python would import by their bare name."""
    return {
        init.parent.name
        for init in tests.rglob("__init__.py")
        if not (init.parent.parent / "__init__.py").exists()
    }


@pytest.mark.parametrize("planted", [(), ("unit/profile",)], ids=["ours", "planted"])
def test_no_package_hides_the_standard_library(tmp_path: Path, planted: tuple[str, ...]) -> None:
    """Without `tests/unit/__init__.py`, `tests/unit/profile` was `import profile` for torch."""
    for folder in planted:
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "__init__.py").touch()
    hidden = root_packages(tmp_path if planted else ROOT / "tests") & sys.stdlib_module_names
    assert hidden == {Path(folder).name for folder in planted}
