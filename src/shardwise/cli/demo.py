"""`shardwise demo`: the two plans of the README; `--train`: one of this machine, and its run."""

from __future__ import annotations

import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

import shardwise as sw
from shardwise.cli.answer import Answer
from shardwise.cli.command import Json
from shardwise.cli.progress import progress
from shardwise.cli.streams import write_answer
from shardwise.report.style import Block, showable, strong
from shardwise.report.training import plan as report

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


# This CPU as two devices; a small Llama of bytes that learns to look like Python in a minute.
DEVICES, BATCH, SEQ = 2, 16, 128
MINUTE_S, FEWEST, MOST = 60, 40, 400  # steps: as many as the plan has in a minute


def run(
    train: Annotated[
        bool, typer.Option("--train", help="measure this CPU, plan for it, and train there")
    ] = False,
    json: Json = False,
) -> Answer:
    """Two plans to start from: 8,960 TPUs and 16,384 GPUs."""
    if train:
        return _trained(json)
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


def _trained(as_json: bool) -> Answer:
    """Measure, plan, train: a minute on this CPU."""
    from shardwise.cli.train import Lines
    from shardwise.report import measured_cpu
    from shardwise.report.style import render
    from shardwise.report.training import run as lines
    from shardwise.train import sources
    from shardwise.train.measure import measure, write_chip
    from shardwise.train.metrics import Hooks
    from shardwise.train.recipe import Recipe
    from shardwise.train.tokenize import tokenize
    from shardwise.train.tokenizer import ByteTokenizer

    def say(blocks: Iterator[Block]) -> None:
        if not as_json:
            write_answer(showable(render([*blocks, ""], sys.stdout), sys.stdout))

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with progress("measuring this CPU"):
            chip = measure(DEVICES)
        say(measured_cpu.blocks(chip, None))
        write_chip(chip, str(folder / "host.toml"))
        with progress("tokenizing the sources of Python's standard library"):
            found = sources.find_sources([str(p) for p in _python()], "*.py", "text")
            text = tokenize(found, ByteTokenizer(), str(folder / "tokens"))
        say(lines.tokenized(text, ""))
        job = sw.Train(batch=BATCH, seq=SEQ, weights="fp32", compute="fp32", gradients="fp32")
        plan = sw.plan(_small(), sw.hardware(f"{folder / 'host.toml'}:{DEVICES}"), job)
        steps = max(FEWEST, min(MOST, int(MINUTE_S / plan.step.expected)))
        told = Lines(plan, steps, quiet=as_json)
        try:
            done = sw.train(
                plan,
                data=str(folder / "tokens"),
                recipe=Recipe(steps=steps, rate=3e-3, warmup=steps // 10),
                sample="def ",
                hooks=Hooks(on_stage=told.stage, on_step=told.step),
            )
        finally:
            told.stages.done()
    return Answer(
        document=lambda: {"plan": plan, "run": done},
        blocks=lines.blocks(done, ""),
        as_json=as_json,
    )


def _small() -> sw.ModelConfig:
    return sw.ModelConfig.dense(
        name="a small Llama",
        n_layers=4,
        d_model=128,
        d_ff=384,
        n_heads=4,
        n_kv_heads=2,
        vocab=264,
    )


def _python() -> list[Path]:
    """The modules of Python's standard library that are one file."""
    return sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
