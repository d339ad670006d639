"""`shardwise import FILE [MODEL] [HARDWARE]`: a plan of what a launch configuration runs."""

from __future__ import annotations

import math
import os
import sys
from typing import Annotated

import shardwise as sw
from shardwise import units
from shardwise.cli import options
from shardwise.cli.answer import Answer
from shardwise.cli.failure import note
from shardwise.cli.inputs import Inputs, parse_output_file
from shardwise.cli.machines import is_machine, parse_machine
from shardwise.cli.options import argument, workload
from shardwise.cli.progress import progress
from shardwise.errors import BadFile, BadInput, NoPlan, nearest
from shardwise.frameworks import registry
from shardwise.frameworks.config_files import LARGEST_FILE, beside, text_of
from shardwise.frameworks.engine_layout import MAX_TOKENS
from shardwise.frameworks.launch import Launch, ServingLaunch, TrainingLaunch
from shardwise.hardware import catalog_chip, chip_names
from shardwise.models import presets
from shardwise.plan.schema.serving import ServingPlan
from shardwise.plan.schema.training import Plan
from shardwise.report.document import document, save


def run(
    words: Annotated[
        list[str],
        argument("FILE [MODEL] [HARDWARE]", "a launch configuration; what it does not name"),
    ],
    origin: Annotated[
        str,
        workload(
            "--from NAME",
            f"its framework: {', '.join(registry.names())}  [default: by its options]",
        ),
    ] = "",
    batch: Annotated[
        str, workload("--batch NxT|N", "in place of the file's: 1024x4096; of serving: 64")
    ] = "",
    context: Annotated[
        str, workload("--context N", "tokens of a sequence of serving, in place of the file's")
    ] = "",
    dtype: options.WeightDtype = "",
    file: options.OutputFile = "",
    verbose: options.Verbose = False,
    json: options.Json = False,
) -> Answer:
    """A plan of what a launch configuration runs: its mesh, batch and options are kept, what it
    leaves open is searched. explain, check and plan then say what would be better."""
    inputs = Inputs()
    path, *names = words
    if len(names) > 2:
        surplus = " ".join(names[2:])
        inputs.refuse(f'"{surplus}" is too much: only MODEL and HARDWARE follow the file.')
    if origin:
        inputs.read(registry.find, origin)
    inputs.optional(parse_output_file, file)
    inputs.done()
    text = sys.stdin.read(LARGEST_FILE) if path == "-" else text_of(path)
    content = registry.read(text, path, origin or None, beside(path))
    launch = content.launch
    model, hardware = _names(launch, names)
    if model == launch.model and not (presets.find(model) or os.path.exists(model)):
        raise BadInput(
            f"{path} names {model}, whose sizes are not known here. Name a model of its sizes, or "
            f"its config.json: shardwise import {path} MODEL HARDWARE. "
            f"{nearest(model.rpartition('/')[2], presets.names())}"
        )
    config = inputs.read(sw.model, model)
    if isinstance(launch, TrainingLaunch):
        system = inputs.read(sw.hardware, _sized(hardware, launch))
        sizes = inputs.optional(units.parse_batch, batch)
        if context:
            inputs.refuse("--context is for serving; --batch has the length of a sequence.")
        if dtype:
            inputs.refuse("--dtype is for serving: the weights of an engine.")
    else:
        machine = inputs.read(parse_machine, _sized(hardware, launch))
        sequences = inputs.optional(units.parse_whole, batch, "--batch")
        length = inputs.optional(units.parse_length, context, "--context")
        inputs.optional(units.bytes_per_element, dtype)
    inputs.done()
    if isinstance(launch, TrainingLaunch):
        launch = launch.on(config, system.chip)
    elif isinstance(launch, ServingLaunch):
        launch = launch.on(config, length)
    for key in launch.ignored:
        note(f"{path}: {key} is not read; plans have no word for it.")
    for text in launch.notes:
        note(f"{path}: {text}")
    for word in content.elsewhere:
        note(f"{path}: the options in {word} are elsewhere, and missing here.")
    for option in content.misspelled:
        note(f"{path}: {content.framework.title} has no option {option}.")
    if launch.model and config and launch.model != model:
        note(f"{path} names {launch.model}; {model} is planned in its place.")
    from shardwise.frameworks import replan

    with progress(f"planning the layout of {path} on {hardware}", quiet=json):
        plan: Plan | ServingPlan
        if isinstance(launch, ServingLaunch):
            plan = replan.serving_plan(launch, config, machine, length, sequences, dtype or None)
            _note_sequences(path, plan, sequences or launch.batch)
            _note_engines(path, plan, launch.n_engines)
            if launch.chunk and launch.chunk < MAX_TOKENS:
                note(
                    f"{path} has passes of {launch.chunk:,} tokens at most; plans have passes of "
                    f"{MAX_TOKENS:,}, so that first tokens may come later."
                )
            default = replan.default_batch(launch, machine)
            if default and not (sequences or launch.batch):
                note(
                    f"{path} does not say how many sequences run at a time: at most {default:,} "
                    f"are planned, the default of {content.framework.title}."
                )
        elif isinstance(launch, TrainingLaunch):
            plan = replan.training_plan(launch, config, system, sizes)
            if plan.layout.loss_chunks > 1 and launch.loss_chunks is None:
                note(
                    f"{path} does not say that the loss is in chunks of tokens: planned in "
                    f"{plan.layout.loss_chunks}, as the logits of all do not fit."
                )
        else:
            raise BadFile(f"{path} says no layout.")
    title = content.framework.title
    is_likely = launch.model is None and model == launch.sized_like and model not in names
    like = f", with a model like {model}" if is_likely else ""
    return _answer(plan, title, file, like=like, verbose=verbose, as_json=json)


def _sized(hardware: str, launch: Launch) -> str:
    """A machine; of a GPU alone, as many as the file starts: `h100` -> `h100:64`."""
    n_chips = launch.n_chips
    if isinstance(launch, ServingLaunch) and launch.n_engines > 1:
        n_chips = launch.n_engines * math.prod(launch.sizes.values())
    is_gpu = hardware in chip_names() and catalog_chip(hardware).kind == "gpu"
    return f"{hardware}:{n_chips}" if is_gpu and n_chips else hardware


def _note_sequences(path: str, plan: ServingPlan, asked: int | None) -> None:
    """Say that the plan has fewer sequences than the file allows."""
    batch = plan.estimate.decode.batch
    if asked and batch < asked:
        note(
            f"{path} allows {asked:,} sequences at a time; {batch:,} of "
            f"{plan.workload.context:,} tokens fit, and are planned."
        )


def _note_engines(path: str, plan: ServingPlan, n_started: int) -> None:
    """Say that the machine holds more engines than the file starts."""
    n_planned = plan.strategy.servers.count
    if 1 < n_started < n_planned:
        note(
            f"{path} starts {n_started} engines; {n_planned} are planned, as many as "
            f"{plan.hardware.name} holds."
        )


def _answer(
    plan: Plan | ServingPlan,
    title: str,
    file: str,
    *,
    like: str,
    verbose: bool,
    as_json: bool,
) -> Answer:
    if file:
        save(plan, file)
    if isinstance(plan, ServingPlan):
        from shardwise.report.serving import plan as serving_report

        blocks = serving_report.blocks(plan, verbose=verbose, saved=file)
    else:
        from shardwise.report.training import plan as training_report

        cause = f"{title} does, and its layout is planned as the file has it"
        blocks = training_report.blocks(plan, verbose=verbose, saved=file, any_layout_by=cause)
    return Answer(
        document=lambda: document(plan),
        blocks=[f"As {title} is told to run it{like}:", *blocks],
        as_json=as_json,
        exit_code=0 if plan.memory.left >= 0 else NoPlan.exit_code,
    )


def _names(launch: Launch, words: list[str]) -> tuple[str, str]:
    """The model and the machine: words of the command line before names of the file.

    A single word is what the file does not name; if it names both, the machine.

    Raises:
        BadInput: one of them is named nowhere.
    """
    model, hardware = launch.model, launch.hardware
    if len(words) == 2:
        return words[0], words[1]
    if len(words) == 1 and model is None and hardware is not None:
        return words[0], hardware
    if not words or is_machine(words[0]):
        model = model or launch.sized_like
    if len(words) == 1 and model is not None:
        return model, words[0]
    if model is None or hardware is None:
        raise BadInput(_missing(launch, words))
    return model, hardware


def _missing(launch: Launch, words: list[str]) -> str:
    """What has to be added to the command line; its single word is a machine or a model."""
    model, hardware = launch.model, launch.hardware
    of_file = model or hardware
    sized = model or launch.sized_like
    begin = f"the file names {'only ' + of_file if of_file else 'neither model nor machine'}."
    missing = [word for word, name in (("MODEL", sized), ("HARDWARE", hardware)) if name is None]
    arguments = "MODEL HARDWARE" if words else " ".join(missing)
    if words:
        missing = ["MODEL" if is_machine(words[0]) else "HARDWARE"]
        begin = f"the file names neither model nor machine, and {words[0]} is only one of them."
    if model is None and launch.presets:
        begin = f"{begin} Its sizes are those of {' | '.join(launch.presets)}."
    return f"{begin} Add {' and '.join(missing)}: shardwise import FILE {arguments}."
