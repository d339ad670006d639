"""What a verb gives back: a document, and the lines that show it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from shardwise.report.style import Block


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer, as a document or as lines.

    Args:
        document: makes what `--json` prints, every number of the lines in it.
        blocks: what a person reads.
        raw: the lines as they are to be written, whatever the stream's width, instead of blocks.
        as_json: document or lines.
        exit_code: 0, or 3 and 4 where the answer is that something does not hold.
    """

    document: Callable[[], Any]
    blocks: Iterable[Block]
    raw: str = ""
    as_json: bool = False
    exit_code: int = 0

    def text(self, stream: TextIO) -> str:
        """The answer as `stream` can show it."""
        if self.as_json:
            return _encoded(self.document(), stream)
        from shardwise.report.style import render, showable

        if self.raw:
            return showable(self.raw, stream)
        return render(self.blocks, stream)


def _encoded(value: Any, stream: TextIO) -> str:
    from shardwise.plan.schema.json_output import encode

    text = encode(value).decode() + "\n"
    try:
        text.encode(stream.encoding or "utf-8")
    except UnicodeEncodeError:
        import json

        return json.dumps(json.loads(text), indent=1) + "\n"
    return text
