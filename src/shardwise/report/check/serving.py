"""What the compiler says of a serving plan, for people."""

from __future__ import annotations

from collections.abc import Iterator

from shardwise import units
from shardwise.check.serving import HbmBytes, ServingVerdict
from shardwise.check.verdict import Verdict
from shardwise.report.check import plan
from shardwise.report.style import Block, labelled


def blocks(verdict: ServingVerdict) -> Iterator[Block]:
    """The decode step, then the prefill step, each as a step of training is told."""
    yield from _step(verdict.decode, verdict.decode_hbm)
    yield from _step(verdict.prefill, verdict.prefill_hbm)


def _step(verdict: Verdict, hbm: HbmBytes) -> Iterator[Block]:
    *told, following = plan.blocks(verdict)
    yield from told
    if hbm.compiled is not None:
        planned, compiled = units.show_bytes(hbm.planned), units.show_bytes(hbm.compiled)
        line = f"{compiled} read and written by a chip in a step; {planned} planned"
        yield labelled([("HBM", line)])
    yield following
