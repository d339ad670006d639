"""Every framework by name; a plan written for one; a file read back as a layout."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from shardwise.errors import BadFile, BadInput, UnknownName
from shardwise.frameworks import (
    accelerate,
    accelerate_fsdp,
    deepspeed,
    jobset,
    maxtext,
    megatron,
    megatron_bridge,
    nemo,
    script_notes,
    sglang,
    shell_script,
    simple_yaml,
    slurm,
    tensorrt_llm,
    torchtitan,
    vllm,
)
from shardwise.frameworks.cluster_machine import machine, replicas, slurm_chips
from shardwise.frameworks.exported import (
    Framework,
    Settings,
    Work,
    Written,
    engine,
    flat,
    training_run,
)
from shardwise.frameworks.launch import Launch, ServingLaunch, TrainingLaunch
from shardwise.frameworks.parsing import names_of_files, parse
from shardwise.frameworks.script_notes import listed
from shardwise.frameworks.shell.run import Beside
from shardwise.frameworks.shell_script import PROGRAM
from shardwise.frameworks.spelling import misspelled, unread
from shardwise.frameworks.watched import Watched
from shardwise.plan.machine import system_of
from shardwise.plan.schema.json_io import AnyPlan
from shardwise.plan.schema.serving import ServingPlan

FRAMEWORKS: dict[str, Framework] = {
    module.FRAMEWORK.name: module.FRAMEWORK
    for module in (
        maxtext,
        torchtitan,
        megatron,
        megatron_bridge,
        nemo,
        deepspeed,
        vllm,
        sglang,
        tensorrt_llm,
        jobset,
        slurm,
    )
}
_ORIGIN = re.compile(r'shardwise: (?P<model>\S+) on (?P<hardware>[^\s"]+)')
_ADAPTERS = re.compile(r"--?(use_(peft|q?lora)|q?lora_\w+|peft_\w+|load_in_[48]bit)\b")
# Quantized checkpoints that say the dtype of the cache too (`kv_cache_quant_algo`).
_OF_NVIDIA = re.compile(r"\bnvidia/[\w.-]+-(?:NV)?FP[48]\b")
_SEQUENCE = re.compile(r"sequence length ([\d,]+): of your data loader")  # one of `deepspeed`
_WEIGHTS = re.compile(r"not in this file: weights in (\w+):")  # a note of `engine_layout`
COMMENTS = "_comments"  # the key of comments in JSON, which has none


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """A plan as the launch configuration of a framework.

    Args:
        notes: what the file cannot say, also comments in it.
        command: how the file is used.
    """

    framework: str
    as_of: str
    text: str
    notes: tuple[str, ...]
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadFile:
    """A launch configuration and what it says.

    Args:
        misspelled: options that the framework does not have, each with one that it has.
        elsewhere: variables and files that a script names, and whose options are not in it.
    """

    framework: Framework
    launch: Launch
    misspelled: tuple[str, ...] = ()
    elsewhere: tuple[str, ...] = ()


def names(work: Work | None = None) -> tuple[str, ...]:
    """Names of all frameworks, or of those that train, or serve."""
    return tuple(name for name, f in FRAMEWORKS.items() if work in (None, f.work))


def find(name: str) -> Framework:
    """The framework of a name.

    Raises:
        UnknownName: there is none.
    """
    if name not in FRAMEWORKS:
        raise UnknownName("framework", name, FRAMEWORKS)
    return FRAMEWORKS[name]


def export(plan: AnyPlan, name: str, part: str | None = None) -> Export:
    """Write a plan as the launch configuration of a framework.

    Args:
        part: "prefill" or "decode" for a disaggregated plan.

    Raises:
        UnknownName: no framework has this name.
        BadInput: the framework does other work, or lacks something of the plan.
    """
    framework = find(name)
    work: Work = "serve" if isinstance(plan, ServingPlan) else "train"
    if framework.work != work:
        does = {"train": "trains", "serve": "serves"}
        raise BadInput(
            f"{framework.title} {does[framework.work]}, and the plan {does[work]} "
            f"{plan.model.name}. Name one of {', '.join(names(work))}."
        )
    if not framework.tpus and system_of(plan.hardware).chip.ici:
        others = [other for other in names(work) if FRAMEWORKS[other].tpus]
        raise BadInput(
            f"{framework.title} runs on GPUs, and the plan is for {plan.hardware.name}. Nearest: "
            f"plan again for GPUs, as h100:{plan.hardware.n_chips}, or export to "
            f"{', '.join(others)}."
        )
    if isinstance(plan, ServingPlan):
        written = framework.write(engine(plan, part))
    elif part:
        raise BadInput(f"--part {part} is for a disaggregated serving plan; this one trains.")
    else:
        written = framework.write(training_run(plan))
    return Export(
        framework=name,
        as_of=framework.as_of,
        text=_text(plan, framework, written),
        notes=tuple(written.notes),
        command=written.command,
    )


def _text(plan: AnyPlan, framework: Framework, written: Written) -> str:
    origin = f"shardwise: {plan.model.name} on {plan.hardware.name}"
    comments = [
        f"{origin}, for {framework.title} {framework.as_of}",
        *([f"use: {written.command}"] if written.command else []),
        *(f"not in this file: {note}" for note in written.notes),
    ]
    if framework.suffix == ".json":
        return json.dumps({COMMENTS: comments, **written.settings}, indent=2) + "\n"
    head = "".join(f"# {line}\n" for line in comments)
    if framework.suffix == ".sh":
        return f"#!/bin/bash\n{head}" + (written.text or shell_script.write(written.settings))
    return head + simple_yaml.write(written.settings)


def read(
    text: str, file: str, name: str | None = None, beside: Beside = lambda name: None
) -> ReadFile:
    """Read a launch configuration of a framework.

    Args:
        file: the name of the file, whose suffix says how it is parsed.
        name: the framework; None to find it by the options in the file.
        beside: reads the files that it names.

    Raises:
        UnknownName: no framework has this name.
        BadFile: the file cannot be parsed, its framework is not found, or a value is wrong.
    """
    framework = find(name) if name else None
    settings, script = parse(text, file, beside)
    settings = _of_accelerate(settings, beside)
    _check_is_read(settings, file)
    if framework is None:
        framework = detect(settings, file)
    elif not framework.knows(settings) and (not settings or any(_known_to(settings))):
        raise BadFile(
            f"{file} has no option of {framework.title} that says a layout. Leave --from out, or "
            f"name another: {', '.join(_known_to(settings) or FRAMEWORKS)}."
        )
    watched = Watched(settings)
    launch = replace(framework.read(watched), framework=framework.name)
    if not framework.knows(settings):
        text_of_none = f"no option of {framework.title} is in it: its defaults are planned."
        launch = replace(launch, notes=(*launch.notes, text_of_none))
    if script:
        notes = script_notes.notes(script, settings, framework.name)
        launch = replace(launch, notes=(*launch.notes, *notes))
    launch = _with_text(launch, text, watched)
    typos = misspelled(settings, framework.name, watched.asked)
    if options := unread(settings, watched.asked, framework.name, typos):
        note = f"not read, though layout, memory or speed may depend on it: {listed(options)}."
        launch = replace(launch, notes=(*launch.notes, note))
    return ReadFile(
        framework=framework,
        launch=launch,
        misspelled=tuple(typos),
        elsewhere=tuple(_elsewhere(settings)),
    )


def _with_text(launch: Launch, text: str, settings: Watched) -> Launch:
    """A launch with what its comments, its cluster and the name of its checkpoint say."""
    origin = _ORIGIN.search(text)
    if origin:
        launch = replace(
            launch,
            model=launch.model or origin["model"].rstrip(","),
            hardware=launch.hardware or origin["hardware"].rstrip(","),
        )
    launch = replace(launch, hardware=launch.hardware or machine(text, settings))
    if adapters := [key for key in settings if _ADAPTERS.match(str(key))]:
        note = (
            f"{listed(adapters)}: adapters are not planned, but training of all weights, with more "
            "memory and traffic."
        )
        launch = replace(launch, notes=(*launch.notes, note))
    if isinstance(launch, TrainingLaunch) and not launch.n_chips:
        launch = replace(launch, n_chips=slurm_chips(text))
    if isinstance(launch, ServingLaunch):
        launch = replace(launch, copies=replicas(text) or 1)
        if (repository := _OF_NVIDIA.search(text)) and launch.kv in (None, "bf16"):
            note = f"{repository[0]}: engines take auto for its fp8 cache; bf16 is planned."
            launch = replace(launch, notes=(*launch.notes, note))
    weights = _WEIGHTS.search(text)
    if weights and isinstance(launch, ServingLaunch):
        launch = replace(launch, weights=launch.weights or weights[1])
    sequence = _SEQUENCE.search(text)
    if sequence and isinstance(launch, TrainingLaunch):
        launch = replace(launch, seq=launch.seq or int(sequence[1].replace(",", "")))
    return launch


def _of_accelerate(settings: Settings, beside: Beside) -> Settings:
    """The settings, with DeepSpeed's words where accelerate starts it."""
    name = accelerate.named_file(settings)
    content = beside(name) if name else None
    if content is not None:
        settings = parse(content, name).settings | settings
    return accelerate.translated(settings)


# Kinds of files that resemble those which are read: keys that all have, in any spelling, and the
# options of `shardwise plan` that say the same.
_NOT_READ = {
    "GPT-NeoX": {"pipe_parallel_size": "pipe", "model_parallel_size": "tensor"},
    "NeMo 1": {
        "model.tensor_model_parallel_size": "tensor",
        "model.pipeline_model_parallel_size": "pipe",
        "exp_manager.name": "",
    },
}


def _check_is_read(settings: Settings, file: str) -> None:
    """Refuse a file of a kind that resembles one which is read, and says its layout otherwise.

    Raises:
        BadFile: it is one.
    """
    values = {path.replace("-", "_"): value for path, value in flat(settings).items()}
    for title, keys in _NOT_READ.items():
        if not {*keys} <= {*values}:
            continue
        fixed = ",".join(f"{axis}={values[key]}" for key, axis in keys.items() if axis)
        raise BadFile(
            f"{file} is a configuration of {title}, which is not read. Plan what it says: "
            f"shardwise plan MODEL HARDWARE --train --batch SEQUENCESxTOKENS --fix {fixed}"
        )


def _elsewhere(settings: Settings) -> Iterator[str]:
    """Files and variables of a script that stand for options which are kept elsewhere."""
    yield from names_of_files(settings)
    for word in shell_script.words_of(settings):
        if shell_script.OPTIONS_ELSEWHERE.fullmatch(word):
            yield word


def _known_to(settings: Settings) -> list[str]:
    """Names of the frameworks that a file has options of."""
    return [name for name, framework in FRAMEWORKS.items() if framework.knows(settings)]


def detect(settings: Settings, file: str) -> Framework:
    """The framework most of whose options a file has.

    Raises:
        BadFile: the file has options of none, or equally many of two.
    """
    if str(settings.get("schema")).startswith("shardwise."):
        raise BadFile(
            f"{file} is a document of shardwise, no launch configuration. A plan is written as one "
            f"by shardwise export {file} --to NAME."
        )
    if accelerate_fsdp.is_launched(settings):
        return accelerate_fsdp.FRAMEWORK
    scores = {name: framework.knows(settings) for name, framework in FRAMEWORKS.items()}
    best = max(scores.values())
    likely = [name for name, score in scores.items() if score == best]
    if best == 1:
        raise BadFile(f"{file} may be of {' or '.join(likely)}. Name it: --from {likely[0]}.")
    if not best:
        keys = [str(key) for key in settings if key not in (PROGRAM, "text")][:4]
        first = f" (its first: {', '.join(keys)})" if keys else ""
        raise BadFile(
            f"{file} has the options of no framework that is read{first}. Name it: "
            f"--from {' | '.join(FRAMEWORKS)}."
        )
    if len(likely) > 1:
        raise BadFile(f"{file} may be of {' or '.join(likely)}. Name it: --from {likely[0]}.")
    return FRAMEWORKS[likely[0]]
