"""`shardwise report FILE -o report.html`: the page as one file that opens from disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from shardwise.cli import options
from shardwise.cli.answer import Answer
from shardwise.cli.inputs import Inputs, parse_output_file
from shardwise.cli.options import argument
from shardwise.cli.progress import progress
from shardwise.errors import file_error
from shardwise.ui.frozen import frozen_page
from shardwise.units import show_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The file that was written, and its size."""

    path: str
    n_bytes: int


def run(
    source: Annotated[str, argument("FILE", "a plan.json, compare --json, or folder of a run")],
    file: options.OutputFile = "report.html",
    json: options.Json = False,
) -> Answer:
    """Write a plan, a saved comparison or a training run as one HTML file, with its charts and
    formulas. It opens from disk, needs no network, and prints."""
    inputs = Inputs()
    inputs.read(parse_output_file, file)
    inputs.done()
    with progress("drawing the curves of every choice", quiet=json):
        page = frozen_page(source)
    try:
        Path(file).write_text(page, encoding="utf-8")
    except OSError as error:
        raise file_error(file, error, "Nothing was saved.") from None
    written = Written(path=file, n_bytes=len(page.encode()))
    return Answer(
        document=lambda: written,
        blocks=[f"{file}, {show_bytes(written.n_bytes)}: open it in a browser"],
        as_json=json,
    )
