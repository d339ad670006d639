"""The compiler's verdict on a serving plan: its decode step, then its prefill step."""

from __future__ import annotations

from collections.abc import Iterator

from shardwise.check.serving import ServingVerdict
from shardwise.report.check import plan
from shardwise.report.style import Block

REMEDY = "plan again with a smaller --batch or --context, or with --dtype int8"


def blocks(verdict: ServingVerdict) -> Iterator[Block]:
    """The verdicts on the decode step and on the prefill step, each laid out by `check.plan`."""
    yield from plan.blocks(verdict.decode, REMEDY)
    yield from plan.blocks(verdict.prefill, REMEDY)
