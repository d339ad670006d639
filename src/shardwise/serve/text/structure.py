"""What an output is asked to look like, before a grammar is made of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from shardwise.serve.request import TokenMask

JSON_OBJECT = "json_object"  # any JSON object
JSON_SCHEMA = "json_schema"  # a JSON value of this schema
REGEX = "regex"  # a text that the whole pattern matches
CHOICE = "choice"  # one of some texts


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarSpec:
    """The structure that an output must have.

    Args:
        kind: `JSON_OBJECT`, `JSON_SCHEMA`, `REGEX` or `CHOICE`.
        definition: the schema as JSON, the pattern, or the texts as a JSON list; empty for
            `JSON_OBJECT`.
        param: the field of the request that gives it, for errors.
    """

    kind: str
    definition: str = ""
    param: str = field(default="response_format", compare=False)


# Makes the mask of one sequence; raises BadInput if the structure is malformed or not supported.
Grammar = Callable[[GrammarSpec], TokenMask]
