"""`shardwise demo`: the two plans of the README, with what is asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import shardwise as sw
from shardwise.cli.answer import Answer
from shardwise.cli.command import Json
from shardwise.cli.progress import progress
from shardwise.report import plan as report
from shardwise.report.style import Block, strong

MODEL = "llama3-70b"
TOKENS = 15e12
QUESTIONS = (
    (
        "v5p:16x20x28",
        1120,
        "How is LLaMA-3-70B trained on a whole TPU v5p pod? 15T tokens, 1,120 sequences of 4,096 "
        "a step.",
    ),
    (
        "h100:16384",
        4096,
        "And on 16,384 H100 GPUs, 8 to a node? 15T tokens, 4,096 sequences of 4,096 a step.",
    ),
)


def run(json: Json = False) -> Answer:
    """Two plans to start from: 8,960 TPUs and 16,384 GPUs."""
    model = sw.model(MODEL)
    plans = []
    for hardware, batch, _ in QUESTIONS:
        job = sw.Train(batch=batch, seq=4096, tokens=TOKENS)
        with progress(f"searching splits of {hardware}"):
            plans.append(sw.plan(model, sw.hardware(hardware), job))
    return Answer(document=lambda: {"plans": plans}, blocks=_blocks(plans), as_json=json)


def _blocks(plans: Sequence[sw.Plan]) -> Iterator[Block]:
    for (hardware, batch, question), plan in zip(QUESTIONS, plans, strict=True):
        yield strong(question)
        yield f"$ shardwise plan {MODEL} {hardware} --train --batch {batch}x4096 --tokens 15T"
        yield ""
        yield from report.blocks(plan)
        yield ""
