"""The compiler's verdict on a serving plan: its decode step, then its prefill step."""

from __future__ import annotations

from collections.abc import Iterator

from shardwise import units
from shardwise.check.serving import HbmBytes, ServingVerdict
from shardwise.check.verdict import Verdict
from shardwise.report.check import plan
from shardwise.report.style import Block, labelled


def blocks(verdict: ServingVerdict) -> Iterator[Block]:
    """The verdicts on the decode step and on the prefill step, each laid out by `check.plan`."""
    yield from _step(verdict.decode, verdict.decode_hbm)
    yield from _step(verdict.prefill, verdict.prefill_hbm)


def _step(verdict: Verdict, hbm: HbmBytes) -> Iterator[Block]:
    *step_blocks, hint = plan.blocks(verdict)
    yield from step_blocks
    if hbm.compiled is not None:
        traffic = units.show_bytes(hbm.compiled)
        planned = units.show_bytes(hbm.planned)
        yield labelled([("HBM", f"{traffic} of traffic per chip and step; {planned} planned")])
    yield hint
