"""Bars, curves, tables and streams."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.report.style import bar, columns, curve, labelled, render, showable, table
from shardwise.report.words import chips, mesh_text, percent, seconds_span, span
from tests.golden.terminal import Stream


@pytest.mark.parametrize(
    ("value", "full", "text"),
    [
        (0, 1, ""),
        (1, 1, "████"),
        (0.5, 1, "██"),
        (0.53, 1, "██▏"),
        (1e-9, 1, "▏"),
        (2, 1, "████"),
        (-1, 1, ""),
        (1, 0, "▏"),
    ],
)
def test_bar(value: float, full: float, text: str) -> None:
    assert bar(value, full, 4) == text


@given(st.floats(0, 1), st.floats(0, 1))
def test_a_longer_bar_is_more(a: float, b: float) -> None:
    low, high = sorted((a, b))
    assert len(bar(low, 1)) <= len(bar(high, 1)) <= 20


def test_curve() -> None:
    assert curve([0, 1, 4, 8], 8) == "▁▂▅█"


def test_a_table_keeps_its_width() -> None:
    made = table(["!name", ">n", "text"], [["one", "1,000", "word " * 30], ["two", "2", ""]])
    lines = render([made], Stream()).splitlines()
    assert lines[0] == "name      n  text"
    assert lines[1].startswith("one   1,000  word word")
    assert lines[-1] == "two       2"
    assert max(map(len, lines)) <= 80


def test_labels_hang() -> None:
    text = render([labelled([("why", "word " * 20), ("", "more")])], Stream())
    assert text.splitlines()[1].startswith("     word")
    assert text.splitlines()[2] == "     more"


def test_brackets_are_text() -> None:
    assert render(["In[B_X,D] [bold]x[/bold] :smile:"], Stream()) == (
        "In[B_X,D] [bold]x[/bold] :smile:\n"
    )


def test_ascii_twins() -> None:
    assert showable("2 × 3 – 4 ▂█▋ ✗", Stream("ascii")) == "2 x 3 - 4 .## x"
    assert showable("ü", Stream("ascii")) == "?"


@pytest.mark.parametrize(("given", "width"), [("", 80), ("33", 40), ("x", 80), ("500", 100)])
def test_columns(monkeypatch: pytest.MonkeyPatch, given: str, width: int) -> None:
    monkeypatch.setenv("COLUMNS", given)
    assert columns(Stream()) == width


def test_words() -> None:
    assert span("1.00 s", "1.00 s") == "1.00 s"
    assert seconds_span(0.4, 1.32) == "400 ms–1.32 s"
    assert mesh_text({"data": 35, "tensor": 4, "pipe": 1}) == "tensor 4 × data 35"
    assert mesh_text({"data": 1}) == "one chip"
    assert (chips(1), chips(8960)) == ("1 chip", "8,960 chips")
    assert percent(0.884) == "88 %"
