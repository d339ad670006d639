"""The result of a verb: a JSON document, and the text that a person reads instead."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from shardwise.report.style import Block


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The result of a verb.

    Args:
        document: returns the value that `--json` prints, with every number of the text.
        blocks: the text for a person, laid out for the width of the terminal.
        raw: text that replaces `blocks` and is written unchanged at any width: Markdown, CSV.
        as_json: whether to print the document instead of the text.
        exit_code: 0; 3 if nothing satisfies the request; 4 if a check failed.
    """

    document: Callable[[], Any]
    blocks: Iterable[Block]
    raw: str = ""
    as_json: bool = False
    exit_code: int = 0

    def text(self, stream: TextIO) -> str:
        """The text to write, in characters that `stream` can show."""
        if self.as_json:
            return json_text(self.document(), stream)
        from shardwise.report.style import render, showable

        if self.raw:
            return showable(self.raw, stream)
        return render(self.blocks, stream)


def json_text(value: Any, stream: TextIO) -> str:
    """`value` as JSON; characters that `stream` cannot encode are escaped."""
    from shardwise.plan.schema.json_output import encode

    text = encode(value).decode() + "\n"
    try:
        text.encode(stream.encoding or "utf-8")
    except UnicodeEncodeError:
        import json

        return json.dumps(json.loads(text), indent=1) + "\n"
    return text
