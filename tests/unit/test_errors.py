"""The tree of errors: exit codes, close names, several problems at once."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise import errors
from shardwise.errors import ShardwiseError, UnknownName, file_error, nearest, raise_all


def tree(cls: type[ShardwiseError]) -> list[type[ShardwiseError]]:
    return [cls, *(below for child in cls.__subclasses__() for below in tree(child))]


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("BadInput", 2), ("UnknownName", 2), ("BadUnit", 2), ("BadShape", 2), ("NotDivisible", 2),
        ("BadSharding", 2), ("BadFile", 2), ("UnknownFigure", 2), ("NoPlan", 3),
        ("DoesNotFit", 3), ("NoStrategy", 3), ("CheckFailed", 4), ("NoAnswer", 5),
        ("MissingExtra", 2), ("ShardwiseError", 1),
    ],
)  # fmt: skip
def test_exit_codes(name: str, code: int) -> None:
    assert getattr(errors, name).exit_code == code


def test_the_tree_is_the_one_that_is_drawn() -> None:
    drawn = errors.__doc__
    for cls in tree(ShardwiseError):
        if cls.__module__ == "shardwise.errors":
            assert cls.__name__ in drawn


def test_every_bad_input_is_a_bad_input() -> None:
    names = ("UnknownName", "BadUnit", "BadShape", "NotDivisible", "BadSharding", "BadFile")
    for name in (*names, "UnknownFigure"):
        assert issubclass(getattr(errors, name), errors.BadInput)
    for name in ("DoesNotFit", "NoStrategy"):
        assert issubclass(getattr(errors, name), errors.NoPlan)


def test_problems_are_lines() -> None:
    error = errors.BadShape("one.", "two.")
    assert error.problems == ("one.", "two.")
    assert str(error) == "one.\ntwo."


def test_all_are_raised_together_or_none() -> None:
    raise_all(errors.BadShape, [])
    with pytest.raises(errors.BadShape) as error:
        raise_all(errors.BadShape, ["one.", "two."])
    assert error.value.problems == ("one.", "two.")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("v5", 'Close: "v5e", "v5p".'),
        ("V5E", 'Close: "v5e", "v5p".'),
        ("h10", 'Close: "h100", "h200".'),
        ("h100-sxm", 'Close: "h100", "h200".'),
        ("xyz", 'Known: "h100", "h200", "v5e", "v5p".'),
        ("", 'Known: "h100", "h200", "v5e", "v5p".'),
    ],
)
def test_names_that_are_close(name: str, told: str) -> None:
    assert nearest(name, ["v5p", "v5e", "h200", "h100"]) == told


def test_long_lists_are_cut() -> None:
    known = [f"name{i:02}" for i in range(40)]
    assert nearest("zzz", known).endswith('"name11", ...')
    assert nearest("name", known) == 'Close: "name00", "name01", "name02", "name03".'


def test_an_unknown_name() -> None:
    error = UnknownName("chip", "v5", ["v5e", "h100"], "List: shardwise hw")
    assert str(error) == 'unknown chip "v5". Close: "v5e". List: shardwise hw'
    assert str(UnknownName("chip", "q", ["v5e"])) == 'unknown chip "q". Known: "v5e".'


@given(st.text(max_size=30), st.lists(st.text(max_size=10), max_size=6))
def test_any_name_has_an_answer(name: str, known: list[str]) -> None:
    told = nearest(name, known)
    assert told.endswith(".")
    if name in known and name:
        assert name in told


def test_a_long_unknown_name_is_cut() -> None:
    (problem,) = UnknownName("chip", "a" * 300, ["h100"]).problems
    assert problem == f'unknown chip "{"a" * 77}...". Known: "h100".'


def test_a_file_with_a_blank_name_is_quoted() -> None:
    refusal = OSError(errno.ENOENT, "No such file or directory")
    assert str(file_error(" ", refusal)) == '" ": No such file or directory.'
    assert str(file_error("a/b", refusal, "Nothing was saved.")) == (
        "a/b: No such file or directory. Nothing was saved."
    )
