"""`shardwise data tokenize INPUT... --out DIR`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shardwise.cli.answer import Answer
from shardwise.cli.command import Json
from shardwise.cli.progress import progress
from shardwise.errors import BadInput
from shardwise.report.training import run as report


def run(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="tokenize INPUT...",
            help="text files, jsonl files, or folders of text",
        ),
    ],
    out: Annotated[str, typer.Option(metavar="DIR", help="the folder of the tokens")] = "",
    tokenizer: Annotated[
        str, typer.Option(metavar="FILE", help="a tokenizer.json  [default: bytes]")
    ] = "",
    end: Annotated[str, typer.Option(metavar="TOKEN", help="its token that ends a document")] = "",
    glob: Annotated[
        str, typer.Option(metavar="PATTERN", help="which files of folders: *.py")
    ] = "*",
    key: Annotated[
        str, typer.Option("--field", metavar="NAME", help="where the text of a jsonl line is")
    ] = "text",
    json: Json = False,
) -> Answer:
    """Text into tokens for training: documents one behind the other, in shards."""
    from shardwise.train import sources
    from shardwise.train.tokenize import tokenize
    from shardwise.train.tokenizer import ByteTokenizer, read_tokenizer

    verb, *inputs = words
    if verb != "tokenize" or not inputs:
        raise BadInput("write: shardwise data tokenize INPUT... --out DIR.")
    if not out:
        raise BadInput("where the tokens go is not said: --out DIR.")
    if end and not tokenizer:
        raise BadInput("--end names a token of --tokenizer FILE; bytes have their own end.")
    file = Path(tokenizer) if tokenizer else None
    made = read_tokenizer(file, end) if file else ByteTokenizer()
    found = sources.find_sources(inputs, glob, key)
    with progress(f"tokenizing {len(found.files):,} files"):
        done = tokenize(found, made, out, file=file)
    return Answer(document=lambda: done, blocks=report.tokenized(done, out), as_json=json)
