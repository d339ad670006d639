"""Names say what they hold, and lines stay light: the shares that may not grow again."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

# Words that say how a value was obtained, or nothing, but not what it is.
EMPTY_WORDS = """
found told held kept given asked one each every some here there other others made said both more
again what rest known mine its own which wanted now then of at least most sent dealt owed lost seen
apart together beside free waited lent sized ends settled undealt turned left taken tried
"""
EMPTY = frozenset(EMPTY_WORDS.split())
SHARE, ROOM_SHARE = 0.01, 0.02  # of all assigned names
LETTERS = 6.4  # mean length of an assigned name; letters of formulas among them
PER_KILOLINE = {"comprehensions": 20.0, "conditionals": 15.0, "pairs": 3.0}
SMALL_ROOM = 50  # names, below which one word is more than its share


@dataclass
class Measure:
    """Counts over some files."""

    lines: int = 0
    letters: int = 0
    names: Counter[str] = field(default_factory=Counter)
    forms: Counter[str] = field(default_factory=Counter)

    def add(self, source: str) -> None:
        """Count the names that a source assigns, and its dense forms."""
        self.lines += len(source.splitlines())
        for node in ast.walk(ast.parse(source)):
            match node:
                case ast.Name(id=name, ctx=ast.Store()):
                    self.names[name] += 1
                    self.letters += len(name)
                case ast.ListComp() | ast.GeneratorExp() | ast.DictComp() | ast.SetComp():
                    self.forms["comprehensions"] += 1
                case ast.IfExp():
                    self.forms["conditionals"] += 1
                case ast.Assign(targets=[ast.Tuple(), *_], value=ast.Tuple()):
                    self.forms["pairs"] += 1

    @property
    def empty_share(self) -> float:
        """The share of assigned names that are empty words."""
        empty = sum(count for name, count in self.names.items() if name in EMPTY)
        return empty / max(self.names.total(), 1)


def measure(files: Iterator[Path]) -> Measure:
    total = Measure()
    for path in files:
        total.add(path.read_text())
    return total


@pytest.fixture(scope="module")
def package(root: Path) -> Measure:
    return measure((root / "src").rglob("*.py"))


def test_few_names_are_empty(package: Measure) -> None:
    assert package.empty_share <= SHARE


def test_few_names_of_any_room_are_empty(root: Path) -> None:
    rooms = {path.parent for path in (root / "src").rglob("*.py")}
    measures = {room.relative_to(root): measure(room.glob("*.py")) for room in rooms}
    large = {room: m for room, m in measures.items() if m.names.total() >= SMALL_ROOM}
    assert {str(r): m.empty_share for r, m in large.items() if m.empty_share > ROOM_SHARE} == {}


def test_names_are_words(package: Measure) -> None:
    assert package.letters / package.names.total() >= LETTERS


@pytest.mark.parametrize("form", PER_KILOLINE)
def test_lines_stay_light(package: Measure, form: str) -> None:
    assert 1000 * package.forms[form] / package.lines <= PER_KILOLINE[form]


def test_the_measure_sees_what_it_counts() -> None:
    dense = Measure()
    dense.add("found, told = 1, 2\nrows = [x if x else 0 for x in found]\n")
    assert dense.empty_share == 2 / 4
    assert dense.forms == {"pairs": 1, "comprehensions": 1, "conditionals": 1}
    assert dense.lines == 2
