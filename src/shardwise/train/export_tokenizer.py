"""The tokenizer of a model that was trained from random weights: that of its training data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from shardwise.errors import MissingExtra
from shardwise.runtime.tokenizer import BYTE_TOKENIZER, TOKENIZER_FILE, byte_level_file

if TYPE_CHECKING:
    from shardwise.train.tokens import TokenSet

GENERATION_CONFIG = "generation_config.json"


def export_tokenizer(tokens: TokenSet, folder: Path) -> list[str]:
    """Write the tokenizer of a token set, and the token that ends a text; return the files' names.

    Without the package `tokenizers` no file is written for tokens that are bytes; random tokens
    have no tokenizer.

    Raises:
        OSError: a file cannot be read or written.
    """
    name = tokens.metadata["tokenizer"]
    if name == TOKENIZER_FILE:
        text = (tokens.folder / TOKENIZER_FILE).read_text("utf-8")
    elif name == BYTE_TOKENIZER:
        try:
            text = byte_level_file()
        except MissingExtra:
            return []
    else:
        return []
    (folder / TOKENIZER_FILE).write_text(text, "utf-8")
    if (folder / GENERATION_CONFIG).exists():
        return [TOKENIZER_FILE]
    settings = {"eos_token_id": tokens.metadata["end"]}
    (folder / GENERATION_CONFIG).write_text(json.dumps(settings, indent=2) + "\n", "utf-8")
    return [TOKENIZER_FILE, GENERATION_CONFIG]
