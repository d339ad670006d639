"""`shardwise data tokenize INPUT... --out DIR`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from shardwise.cli import options
from shardwise.cli.answer import Answer
from shardwise.cli.options import argument, output, workload
from shardwise.cli.progress import progress
from shardwise.errors import BadInput
from shardwise.report.training import run as report


def run(
    words: Annotated[
        list[str],
        argument("tokenize INPUT...", "text files, jsonl files, or folders of text"),
    ],
    out: Annotated[str, output("--out DIR", "the folder of the tokens")] = "",
    tokenizer: Annotated[
        str, workload("--tokenizer FILE", "a tokenizer.json  [default: bytes]")
    ] = "",
    end: Annotated[str, workload("--end TOKEN", "token that ends a document")] = "",
    glob: Annotated[str, workload("--glob PATTERN", "which files of folders: *.py")] = "*",
    key: Annotated[str, workload("--field NAME", "field of a jsonl line with its text")] = "text",
    json: options.Json = False,
) -> Answer:
    """Tokenize text for training: documents one after the other, in shards."""
    from shardwise.runtime.tokenizer import ByteTokenizer, Tokenizer, read_tokenizer
    from shardwise.train import sources
    from shardwise.train.tokenize import tokenize

    action, *inputs = words
    if action != "tokenize" or not inputs:
        raise BadInput("write: shardwise data tokenize INPUT... --out DIR.")
    if not out:
        raise BadInput("no folder is given for the tokens: --out DIR.")
    if end and not tokenizer:
        raise BadInput("--end names a token of --tokenizer FILE; bytes have their own end.")
    tokenizer_file = None
    encoder: Tokenizer = ByteTokenizer()
    if tokenizer:
        tokenizer_file = Path(tokenizer)
        encoder = read_tokenizer(tokenizer_file, end)
    text_files = sources.find_sources(inputs, glob, key)
    with progress(f"tokenizing {len(text_files.files):,} files", quiet=json):
        dataset = tokenize(text_files, encoder, out, file=tokenizer_file)
    return Answer(document=lambda: dataset, blocks=report.tokenized(dataset, out), as_json=json)
