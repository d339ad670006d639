"""No file imports itself through others, not even inside functions or for types alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest


def imports(tree: ast.AST, modules: set[str]) -> Iterator[str]:
    """The modules of the package that a file imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in modules else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def graph(src: Path) -> dict[str, set[str]]:
    trees: dict[str, ast.AST] = {}
    for path in src.rglob("*.py"):
        parts = path.relative_to(src).with_suffix("").parts
        name = ".".join(part for part in parts if part != "__init__")
        trees[name] = ast.parse(path.read_text())
    modules = set(trees)
    return {name: {*imports(tree, modules)} & modules - {name} for name, tree in trees.items()}


def test_no_import_is_circular(root: Path) -> None:
    TopologicalSorter(graph(root / "src")).prepare()


def test_a_circle_is_seen(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def f():\n    from b import g\n")
    (tmp_path / "b.py").write_text("import a\n")
    with pytest.raises(CycleError):
        TopologicalSorter(graph(tmp_path)).prepare()
