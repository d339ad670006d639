"""Formats of recorded traffic: ours, and two that are published.

A format is recognised by the names of its columns, and each of its rows is translated to our
columns, which `trace` checks.

- Azure's LLM inference traces (github.com/Azure/AzurePublicDataset) are CSV files.
- Mooncake's traces (github.com/kvcache-ai/Mooncake) are JSON lines. `hash_ids` has an id for each
  512 tokens of a prompt; prompts with the same id are equal up to the end of these tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from shardwise.simulate.request import PrefixBlocks

REQUIRED = ("arrival", "prompt", "output")
OPTIONAL = ("prefix", "shared")
MOONCAKE_BLOCK_TOKENS = 512

Fields = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceFormat:
    """Columns of a format, and the translation of its rows.

    Args:
        required, optional: names of its columns.
        translate: a row's values by our columns, from those by its own. Values that have no
            translation are left as they are.
    """

    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    translate: Callable[[Fields], Fields] = dict

    @property
    def columns(self) -> tuple[str, ...]:
        """All its columns."""
        return (*self.required, *self.optional)


def _azure(fields: Fields) -> Fields:
    return {
        "arrival": _seconds_of_date(fields["TIMESTAMP"]),
        "prompt": fields["ContextTokens"],
        "output": fields["GeneratedTokens"],
    }


def _seconds_of_date(text: object) -> object:
    """`2023-11-16 18:15:46.6805900` -> seconds since 1970; other texts are returned."""
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return text


def _mooncake(fields: Fields) -> Fields:
    arrival = fields["timestamp"]
    if isinstance(arrival, int | float) and not isinstance(arrival, bool):
        arrival = arrival / 1e3
    prompt = fields["input_length"]
    row = {"arrival": arrival, "prompt": prompt, "output": fields["output_length"]}
    ids = fields.get("hash_ids")
    if not ids:
        return row
    shared: object = f"hash_ids {ids}"
    if isinstance(ids, list) and all(isinstance(id, int) for id in ids) and _is_count(prompt):
        shared = min(prompt, len(ids) * MOONCAKE_BLOCK_TOKENS)
        return {**row, "prefix": PrefixBlocks(tuple(ids), MOONCAKE_BLOCK_TOKENS), "shared": shared}
    return {**row, "shared": shared}


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


OURS = TraceFormat(required=REQUIRED, optional=OPTIONAL)
FORMATS = (
    OURS,
    TraceFormat(required=("TIMESTAMP", "ContextTokens", "GeneratedTokens"), translate=_azure),
    TraceFormat(
        required=("timestamp", "input_length", "output_length"),
        optional=("hash_ids",),
        translate=_mooncake,
    ),
)


def format_of(columns: Iterable[str]) -> TraceFormat:
    """The format that requires most of the columns; ours if none does. Case decides last."""
    names = set(columns)
    lower = {name.lower() for name in names}

    def matches(trace_format: TraceFormat) -> tuple[int, int]:
        required = trace_format.required
        n_in_any_case = sum(name.lower() in lower for name in required)
        return n_in_any_case, len(names & set(required))

    return max(FORMATS, key=matches)
