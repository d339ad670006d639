"""Layout of results: tables, bars and sparklines that fit the width of the output stream.

No other module imports rich. Reports write × · – and block characters freely; a stream that cannot
show them gets ASCII replacements. Colour appears only on a terminal and carries no information.
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

# Limits of the width in characters; longer lines of prose are hard to read.
MAX_COLUMNS = 100
MIN_COLUMNS = 40

_EIGHTHS = " ▏▎▍▌▋▊▉"  # by number of filled eighths of a character, from the left
_LEVELS = "▁▂▃▄▅▆▇█"
_ASCII = str.maketrans(
    {
        "×": "x", "·": "|", "–": "-", "→": "->", "≥": ">=", "µ": "u", "✓": "ok", "✗": "x",
        **dict(zip("▏▎▍▌▋▊▉█", "    ####", strict=True)),
        **dict(zip("▁▂▃▄▅▆▇", "_.-:=+*", strict=True)),
    }
)  # fmt: skip


def render(blocks: Iterable[Block], stream: TextIO) -> str:
    """Lay out blocks as text that `stream` can show; lines have no trailing blanks."""
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
    """Replace characters that `stream` may not show: unless it is UTF-8, `×` becomes `x`."""
    encoding = stream.encoding or "utf-8"
    if encoding.lower().replace("-", "") != "utf8":
        text = text.translate(_ASCII)
    return text.encode(encoding, "replace").decode(encoding)


def printable(text: str) -> str:
    """Text of other programs without commands to the terminal; line breaks and tabs stay."""
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "?" for letter in text)


def columns(stream: TextIO) -> int:
    """Width of a stream in characters: $COLUMNS, else the terminal's width, else 80.

    Widths of $COLUMNS or of a terminal are limited to MIN_COLUMNS ... MAX_COLUMNS.
    """
    setting = os.environ.get("COLUMNS", "")
    if not (setting.isdigit() or stream.isatty()):
        return 80
    return max(MIN_COLUMNS, min(MAX_COLUMNS, shutil.get_terminal_size((80, 24)).columns))


def strong(text: str) -> Text:
    """`text` in the style of a headline: bold."""
    return Text(text, style="bold")


def quiet(text: str) -> Text:
    """`text` in the style of a footnote or hint: dim."""
    return Text(text, style="dim")


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table without rules.

    Args:
        headers: one per column, with marks that are not printed: `>` before a header aligns its
            column to the right, `!` forbids wrapping. A table of empty headers has no header row.
    """
    names = [header.lstrip(">!") for header in headers]
    result = Table(
        box=None, pad_edge=False, padding=(0, 1), header_style="dim", show_header=any(names)
    )
    for header, name in zip(headers, names, strict=True):
        justify: Literal["left", "right"] = "right" if ">" in header else "left"
        result.add_column(name, justify=justify, no_wrap="!" in header, overflow="fold")
    for row in rows:
        result.add_row(*row)
    return result


def label_first(label: str, texts: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Rows for `labelled`: the label is on the first row, and the others have none."""
    for text in texts:
        yield label, text
        label = ""


def labelled(rows: Iterable[tuple[str, str]]) -> Table:
    """A table of (label, text) rows in two columns; a long text wraps within its column."""
    result = Table(box=None, pad_edge=False, padding=(0, 1), show_header=False)
    result.add_column(style="cyan", no_wrap=True)
    result.add_column(overflow="fold")
    for label, text in rows:
        result.add_row(label, text)
    return result


def bar(value: float, maximum: float, width: int = 20) -> str:
    """A bar of block characters, drawn in eighths of a character.

    `maximum` fills `width` characters; any value above zero draws at least an eighth of one.
    """
    share = 0.0
    if maximum > 0:
        share = min(1.0, max(0.0, value / maximum))
    n_full, eighths = divmod(round(8 * width * share), 8)
    text = "█" * n_full + _EIGHTHS[eighths].strip()
    if not text and value > 0:
        return "▏"
    return text


def curve(values: Iterable[float], maximum: float) -> str:
    """A sparkline: one block character for each value, of full height at `maximum`."""
    return "".join(_LEVELS[max(0, min(7, int(8 * value / maximum)))] for value in values)
