"""Layout of results: tables, bars and curves within the width of the stream. The only user of rich.

Reports write × · – and block bars freely; a stream that cannot show them gets ASCII replacements.
Colour is an accent that only a terminal shows; no fact depends on it.
"""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

Block = str | Text | Table

MAX_COLUMNS = 100  # longer lines of prose are hard to read
MIN_COLUMNS = 40

_EIGHTHS = " ▏▎▍▌▋▊▉"
_LEVELS = "▁▂▃▄▅▆▇█"
_ASCII = str.maketrans(
    {
        "×": "x", "·": "|", "–": "-", "→": "->", "≥": ">=", "µ": "u", "✓": "ok", "✗": "x",
        **dict(zip("▏▎▍▌▋▊▉█", "    ####", strict=True)),
        **dict(zip("▁▂▃▄▅▆▇", "_.-:=+*", strict=True)),
    }
)  # fmt: skip


def render(blocks: Iterable[Block], stream: TextIO) -> str:
    """The text of blocks in the encoding of `stream`, without trailing blanks."""
    output = io.StringIO()
    console = Console(
        file=output,
        force_terminal=stream.isatty(),
        width=columns(stream),
        color_system=None if os.environ.get("NO_COLOR") else "auto",
        highlight=False,
        markup=False,
        emoji=False,
    )
    for block in blocks:
        console.print(block)
    text = "\n".join(line.rstrip() for line in output.getvalue().split("\n"))
    return showable(text, stream)


def showable(text: str, stream: TextIO) -> str:
    """The text in the encoding of `stream`; `×` becomes `x` where ASCII is all it has."""
    encoding = stream.encoding or "utf-8"
    if encoding.lower().replace("-", "") != "utf8":
        text = text.translate(_ASCII)
    return text.encode(encoding, "replace").decode(encoding)


def columns(stream: TextIO) -> int:
    """Width of a stream: $COLUMNS, else the width of the terminal, else 80."""
    setting = os.environ.get("COLUMNS", "")
    if not (setting.isdigit() or stream.isatty()):
        return 80
    return max(MIN_COLUMNS, min(MAX_COLUMNS, shutil.get_terminal_size((80, 24)).columns))


def strong(text: str) -> Text:
    """The headline of an answer."""
    return Text(text, style="bold")


def quiet(text: str) -> Text:
    """A footnote or hint."""
    return Text(text, style="dim")


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table without rules; `>` before a head aligns its column right, `!` forbids wrapping."""
    names = [head.lstrip(">!") for head in heads]
    result = Table(
        box=None, pad_edge=False, padding=(0, 1), header_style="dim", show_header=any(names)
    )
    for head, name in zip(heads, names, strict=True):
        justify: Literal["left", "right"] = "right" if ">" in head else "left"
        result.add_column(name, justify=justify, no_wrap="!" in head, overflow="fold")
    for row in rows:
        result.add_row(*row)
    return result


def rows_below(label: str, texts: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Rows for `labelled`, of which only the first has the label."""
    for text in texts:
        yield label, text
        label = ""


def labelled(rows: Iterable[tuple[str, str]]) -> Table:
    """Labels and texts in two columns; a long text wraps within its column."""
    result = Table(box=None, pad_edge=False, padding=(0, 1), show_header=False)
    result.add_column(style="cyan", no_wrap=True)
    result.add_column(overflow="fold")
    for label, text in rows:
        result.add_row(label, text)
    return result


def bar(value: float, full: float, width: int = 20) -> str:
    """A bar of `width` columns for `full`, in eighths of a column; visible above zero."""
    share = min(1.0, max(0.0, value / full)) if full > 0 else 0.0
    n_columns, eighths = divmod(round(8 * width * share), 8)
    text = "█" * n_columns + _EIGHTHS[eighths].strip()
    if not text and value > 0:
        return "▏"
    return text


def curve(values: Iterable[float], top: float) -> str:
    """A sparkline: one block for each value, full at `top`."""
    return "".join(_LEVELS[max(0, min(7, int(8 * value / top)))] for value in values)
