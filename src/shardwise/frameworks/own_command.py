"""The layout of a plan as the words of `shardwise plan`, for files that start this package."""

from __future__ import annotations

import re
import shlex

from shardwise import units
from shardwise.errors import BadFile
from shardwise.frameworks.exported import TrainingRun
from shardwise.frameworks.launch import TrainingLaunch
from shardwise.search.training.forms import NUMBERS, words
from shardwise.strategy.mesh import INSIDE_OUT

PLAN = "plan.json"
_COMMAND = re.compile(r"shardwise plan [^\n;&|]*")


def command(run: TrainingRun) -> str:
    """The command that makes the plan again on each host."""
    layout, job = run.layout, run.job
    settings = {role: size for role, size in layout.mesh.sizes.items() if size > 1}
    settings["micro_batch"] = layout.micro_batch
    settings["n_microbatches"] = layout.n_microbatches
    if layout.data_shards * layout.mesh.context > 1:
        settings["zero"] = layout.zero
    if layout.virtual > 1:
        settings["virtual"] = layout.virtual
    if run.is_moe and layout.mesh.tensor > 1:
        settings["expert_tensor"] = run.expert_tensor
    if layout.loss_chunks > 1:
        settings["loss_chunks"] = layout.loss_chunks
    texts = [f"{name}={value}" for name, value in settings.items()]
    if layout.is_pipelined:
        texts.append(f"schedule={layout.schedule}")
    if layout.mesh.context > 1:
        texts.append(f"context_kind={layout.context_kind}")
    options = [
        f"--batch {job.batch}x{job.seq}",
        f"--mesh {','.join(texts)}",
        f"--remat {layout.policy}",
        f"--dtype {job.compute}",
        f"--optimizer {job.optimizer}",
    ]
    if job.mtp_layers:
        options.append(f"--mtp {job.mtp_layers}")
    if job.precision:
        options.append(f"--precision {job.precision}")
    if job.tokens:
        options.append(f"--tokens {job.tokens:.0f}")
    model = shlex.quote(run.plan.model.name)
    machine = shlex.quote(run.plan.hardware.name)
    return f"shardwise plan {model} {machine} --train {' '.join(options)} -o {PLAN}"


def read(text: str, framework: str) -> TrainingLaunch:
    """The layout of the command in a file.

    Raises:
        BadFile: the file has no such command, or one with an option that is not read.
    """
    match = _COMMAND.search(text)
    if not match or "--mesh" not in match[0]:
        raise BadFile(
            f"{framework}: the file has no command shardwise plan MODEL HARDWARE --mesh ..., which "
            "says its layout. Name the framework that it starts: --from megatron."
        )
    words_of_command = shlex.split(match[0])[2:]
    options: dict[str, str] = {}
    names = []
    while words_of_command:
        word = words_of_command.pop(0)
        if word == "--train":
            continue
        if word.startswith("-") and words_of_command:
            options[word] = words_of_command.pop(0)
        else:
            names.append(word)
    settings: dict[str, str] = dict(
        part.split("=", 1) for part in options["--mesh"].split(",") if "=" in part
    )
    numbers = {
        name: _number(f"--mesh {name}=", value)
        for name, value in settings.items()
        if name not in words()
    }
    shards = numbers.get("expert_tensor")
    batch, seq = units.parse_batch(options["--batch"]) if "--batch" in options else (None, None)
    return TrainingLaunch(
        sizes={role: numbers.get(role, 1) for role in INSIDE_OUT},
        batch=batch,
        seq=seq,
        micro_batch=numbers.get("micro_batch"),
        n_microbatches=numbers.get("n_microbatches"),
        zero=numbers.get("zero"),
        virtual=numbers.get("virtual"),
        expert_tensor=None if shards == numbers.get("tensor") else shards,
        schedule=settings.get("schedule"),
        context_kind=settings.get("context_kind"),
        mtp_layers=_number("--mtp ", options.get("--mtp", "0")),
        remat=options.get("--remat"),
        compute=options.get("--dtype"),
        optimizer=options.get("--optimizer"),
        precision=options.get("--precision"),
        model=names[0] if names else None,
        hardware=names[1] if len(names) > 1 else None,
        ignored=tuple(name for name in numbers if name not in (*INSIDE_OUT, *NUMBERS)),
    )


def _number(option: str, value: str) -> int:
    if not value.isdigit():
        raise BadFile(f"{option}{value} is no number.")
    return int(value)
