"""How results look: tables, bars and curves within the width of the stream. The only user of rich.

Reports write × · – and block bars freely; a stream that cannot show them gets their ASCII twins.
Colour is an accent, never the only carrier of a fact, and only a terminal sees it.
"""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Iterable, Sequence
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

Block = str | Text | Table

WIDEST = 100  # prose is not readable across a wide screen
NARROWEST = 40

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
    """Blocks as the text that `stream` can show, without blanks at the ends of lines."""
    laid_out = io.StringIO()
    console = Console(
        file=laid_out,
        force_terminal=stream.isatty(),
        width=columns(stream),
        color_system=None if os.environ.get("NO_COLOR") else "auto",
        highlight=False,
        markup=False,
        emoji=False,
    )
    for block in blocks:
        console.print(block)
    text = "\n".join(line.rstrip() for line in laid_out.getvalue().split("\n"))
    return showable(text, stream)


def showable(text: str, stream: TextIO) -> str:
    """The text in what the encoding of `stream` has."""
    encoding = stream.encoding or "utf-8"
    if encoding.lower().replace("-", "") != "utf8":
        text = text.translate(_ASCII)
    return text.encode(encoding, "replace").decode(encoding)


def columns(stream: TextIO) -> int:
    """Width in columns: COLUMNS, else that of the terminal, else 80."""
    given = os.environ.get("COLUMNS", "")
    if not (given.isdigit() or stream.isatty()):
        return 80
    return max(NARROWEST, min(WIDEST, shutil.get_terminal_size((80, 24)).columns))


def strong(text: str) -> Text:
    """The line that answers."""
    return Text(text, style="bold")


def quiet(text: str) -> Text:
    """What can be skipped."""
    return Text(text, style="dim")


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Plain columns. `>` before a head aligns its column to the right, `!` keeps it unwrapped."""
    names = [head.lstrip(">!") for head in heads]
    made = Table(
        box=None, pad_edge=False, padding=(0, 1), header_style="dim", show_header=any(names)
    )
    for head, name in zip(heads, names, strict=True):
        made.add_column(
            name,
            justify="right" if ">" in head else "left",
            no_wrap="!" in head,
            overflow="fold",
        )
    for row in rows:
        made.add_row(*row)
    return made


def labelled(rows: Iterable[tuple[str, str]]) -> Table:
    """A label and its text, which wraps under itself."""
    made = Table(box=None, pad_edge=False, padding=(0, 1), show_header=False)
    made.add_column(style="cyan", no_wrap=True)
    made.add_column(overflow="fold")
    for label, text in rows:
        made.add_row(label, text)
    return made


def bar(value: float, full: float, width: int = 20) -> str:
    """A bar of eighths of a column; anything above zero shows."""
    share = min(1.0, max(0.0, value / full)) if full > 0 else 0.0
    whole, rest = divmod(round(8 * width * share), 8)
    text = "█" * whole + (_EIGHTHS[rest] if rest else "")
    return text or ("▏" if value > 0 else "")


def curve(values: Iterable[float], top: float) -> str:
    """One block for each value, full at `top`."""
    return "".join(_LEVELS[max(0, min(7, int(8 * v / top)))] for v in values)
