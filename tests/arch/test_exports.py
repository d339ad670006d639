"""The public names: sorted, each there, each documented where it is defined and in docs/api.md."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import shardwise
from tests.arch import fresh

# Imports every module of the package, then prints the public names that no longer resolve to what
# they were: a submodule of the same name takes the place of a function unless care is taken.
SHADOWED = """
import importlib, pkgutil, shardwise
first = {name: getattr(shardwise, name) for name in shardwise.__all__}
for found in pkgutil.walk_packages(shardwise.__path__, "shardwise."):
    if not found.name.endswith("__main__"):
        importlib.import_module(found.name)
print(*[name for name in first if getattr(shardwise, name) is not first[name]])
"""


def names() -> list[str]:
    return list(getattr(shardwise, "__all__", []))


def test_there_are_public_names_in_order() -> None:
    assert names()
    assert names() == sorted(names(), key=lambda n: (n.islower(), n))
    assert len(names()) == len(set(names()))


@pytest.mark.parametrize("name", names())
def test_name_is_there_with_a_docstring(name: str) -> None:
    value = getattr(shardwise, name)
    if isinstance(value, str):  # __version__ and the like say what they are
        return
    assert not inspect.ismodule(value)
    written = (inspect.getdoc(value) or "").strip()
    assert written, "no docstring"
    assert not written.startswith(f"{name}("), "only the docstring that dataclass makes"


@pytest.mark.parametrize("name", names())
def test_name_is_in_the_reference(root: Path, name: str) -> None:
    text = (root / "docs" / "api.md").read_text()
    assert re.search(rf"`(?:sw\.|shardwise\.)?{re.escape(name)}\b", text)


def test_names_are_seen_by_dir() -> None:
    assert set(names()) <= set(dir(shardwise))


def test_no_module_takes_the_place_of_a_name() -> None:
    code, text = fresh.run("-c", SHADOWED)
    assert code == 0, text
    assert text.split() == []
