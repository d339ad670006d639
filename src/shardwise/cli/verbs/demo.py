"""`shardwise demo`: the two plans of the README. With --train: a plan for this CPU, and its run."""

from __future__ import annotations

import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import shardwise as sw
from shardwise.cli import options
from shardwise.cli.answer import Answer
from shardwise.cli.options import workload
from shardwise.cli.progress import progress
from shardwise.cli.streams import write_answer
from shardwise.report.document import document, plans_document
from shardwise.report.style import Block, showable, strong
from shardwise.report.training import plan as report

MODEL = "llama3-70b"
TOKENS = 15e12
# Hardware, sequences in a batch, and the question that the plan answers.
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

# --train: this CPU as two devices trains a small Llama on bytes, whose samples look like Python
# after a minute.
N_DEVICES = 2
BATCH = 16
SEQ = 128
RUN_S = 60  # expected seconds of the run, within the limits of its steps
MIN_STEPS = 40
MAX_STEPS = 400


def run(
    train: Annotated[
        bool, workload("--train", "measure this CPU, plan for it, and train on it")
    ] = False,
    json: options.Json = False,
) -> Answer:
    """Two plans to start from: 8,960 TPUs and 16,384 GPUs."""
    if train:
        return _train(json)
    model = sw.model(MODEL)
    demo_plans = []
    for hardware, batch, _ in QUESTIONS:
        job = sw.Train(batch=batch, seq=4096, tokens=TOKENS)
        with progress(f"searching splits of {hardware}", quiet=json):
            demo_plans.append(sw.plan(model, sw.hardware(hardware), job))
    return Answer(
        document=lambda: plans_document(demo_plans), blocks=_blocks(demo_plans), as_json=json
    )


def _blocks(plans: Sequence[sw.Plan]) -> Iterator[Block]:
    for (hardware, batch, question), plan in zip(QUESTIONS, plans, strict=True):
        yield strong(question)
        yield f"$ shardwise plan {MODEL} {hardware} --train --batch {batch}x4096 --tokens 15T"
        yield ""
        yield from report.blocks(plan)
        yield ""


def _train(as_json: bool) -> Answer:
    """Measure this CPU, plan a training run for it, and run the plan for about a minute."""
    from shardwise.cli.verbs.train import RunLines
    from shardwise.measure.chip_file import write_chip
    from shardwise.measure.machine import measure
    from shardwise.report import measured
    from shardwise.report.style import render
    from shardwise.report.training import run as train_report
    from shardwise.runtime.tokenizer import ByteTokenizer
    from shardwise.train import sources
    from shardwise.train.metrics import Hooks
    from shardwise.train.recipe import Recipe
    from shardwise.train.tokenize import tokenize

    def write_blocks(blocks: Iterator[Block]) -> None:
        if not as_json:
            write_answer(showable(render([*blocks, ""], sys.stdout), sys.stdout))

    with tempfile.TemporaryDirectory() as folder_name:
        folder = Path(folder_name)
        with progress("measuring this CPU", quiet=as_json):
            chip = measure(N_DEVICES)
        write_blocks(measured.blocks(chip, None))
        write_chip(chip, str(folder / "host.toml"))
        with progress("tokenizing the sources of Python's standard library", quiet=as_json):
            modules = sources.find_sources([str(path) for path in _modules()], "*.py", "text")
            dataset = tokenize(modules, ByteTokenizer(), str(folder / "tokens"))
        write_blocks(train_report.tokenized(dataset, ""))
        job = sw.Train(batch=BATCH, seq=SEQ, weights="fp32", compute="fp32")
        plan = sw.plan(_small_model(), sw.hardware(f"{folder / 'host.toml'}:{N_DEVICES}"), job)
        n_steps = max(MIN_STEPS, min(MAX_STEPS, int(RUN_S / plan.step.expected)))
        run_lines = RunLines(plan, n_steps, quiet=as_json)
        try:
            result = sw.train(
                plan,
                data=str(folder / "tokens"),
                recipe=Recipe(steps=n_steps, rate=3e-3, warmup=n_steps // 10),
                sample="def ",
                hooks=Hooks(on_stage=run_lines.stage, on_step=run_lines.step),
            )
        finally:
            run_lines.stages.done()
    return Answer(
        document=lambda: {"plan": document(plan), "run": result},
        blocks=train_report.blocks(result, ""),
        as_json=as_json,
    )


def _small_model() -> sw.ModelConfig:
    return sw.ModelConfig.dense(
        name="a small Llama",
        n_layers=4,
        d_model=128,
        d_ff=384,
        n_heads=4,
        n_kv_heads=2,
        vocab=264,
    )


def _modules() -> list[Path]:
    """The modules of Python's standard library that consist of a single file."""
    return sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
