"""The program reads values: sentences are made by `report` and `cli`, and nothing reads them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

CORE = ("ops", "strategy", "estimate", "search", "simulate", "plan")
# Methods that take a text apart, and what the program composes: names, words of arrays, sentences.
TAKES_APART = {"split", "rsplit", "partition", "rpartition", "startswith", "endswith", "replace"}
TAKES_APART |= {"removeprefix", "removesuffix", "find", "index"}
COMPOSED = {"name", "what", "kind", "rule", "text", "expression", "step", "bound"}
SENTENCES = {"text", "problems"}


def parsed(tree: ast.AST) -> Iterator[int]:
    """Lines that take a composed text apart."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr=method, value=ast.Attribute(attr=of))):
                if method in TAKES_APART and of in COMPOSED:
                    yield node.lineno
            case ast.Subscript(value=ast.Attribute(attr=of), slice=ast.Slice()):
                if of in COMPOSED:
                    yield node.lineno


def compared(tree: ast.AST) -> Iterator[int]:
    """Lines that compare a sentence: a `text`, `problems`, or the words of an error."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            for side in (node.left, *node.comparators):
                words = isinstance(side, ast.Attribute) and side.attr in SENTENCES
                of_error = isinstance(side, ast.Call) and ast.unparse(side) == "str(error)"
                if words or of_error:
                    yield node.lineno


def worded(tree: ast.AST) -> Iterator[int]:
    """Lines that give a value a `text`, or declare one."""
    for node in ast.walk(tree):
        match node:
            case ast.keyword(arg="text", value=value):
                yield value.lineno
            case ast.AnnAssign(target=ast.Name(id="text"), value=None, lineno=line):
                yield line


def sources(root: Path, rooms: tuple[str, ...]) -> Iterator[tuple[str, ast.AST]]:
    package = root / "src" / "shardwise"
    for room in rooms:
        for path in sorted((package / room).rglob("*.py")):
            yield str(path.relative_to(package)), ast.parse(path.read_text())


def test_no_composed_name_is_taken_apart(root: Path) -> None:
    found = [f"{name}:{n}" for name, tree in sources(root, CORE) for n in parsed(tree)]
    assert not found


def test_no_sentence_is_compared(root: Path) -> None:
    found = [f"{name}:{n}" for name, tree in sources(root, CORE) for n in compared(tree)]
    assert not found


def test_a_plan_is_made_of_values(root: Path) -> None:
    found = [f"{name}:{n}" for name, tree in sources(root, ("plan",)) for n in worded(tree)]
    assert not found


@pytest.mark.parametrize(
    ("check", "line"),
    [
        (parsed, 'array.name.startswith("d")'),
        (parsed, "array.name[1:]"),
        (parsed, 'found.rule.replace("with mean", "with p99")'),
        (compared, 'error.problems == ("no engine is legal.",)'),
        (compared, "tried.text != other"),
        (compared, '"fits" in str(error)'),
        (worded, 'Reason(constraint="x", text=f"{n} more")'),
        (worded, "class Alternative:\n    text: str"),
    ],
)
def test_the_checks_can_fail(check: object, line: str) -> None:
    assert callable(check)
    assert [*check(ast.parse(line))]
