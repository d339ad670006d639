"""The model that `serve` and `generate` load, from the words and options of a command line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

from shardwise import units
from shardwise.cli.inputs import Inputs, load_plan, parse_word
from shardwise.cli.options import argument, option, workload
from shardwise.cli.progress import ProgressLine
from shardwise.errors import BadInput, UnknownName
from shardwise.plan.schema.serving import ServingPlan
from shardwise.runtime.recording import Recorder
from shardwise.serve import launch
from shardwise.serve.engine_options import CONTEXT, PASS_TOKENS, SEQUENCES, EngineOptions
from shardwise.serve.launch import launched
from shardwise.serve.model_files import ServedModel, find_model
from shardwise.serve.model_files.find import PACKAGES
from shardwise.simulate.limits import MAX_TOKENS_PER_PASS

if TYPE_CHECKING:
    from shardwise.serve.request import Engine

WEIGHTS_DTYPES = ("fp32", "bf16", "int8", "int4")
KV_DTYPES = ("fp32", "bf16", "int8")
NGRAM = "ngram"
DRAFTED = 3
MOST_DRAFTED = MAX_TOKENS_PER_PASS - 1
STAGES = {
    "weights": "loading weights",
    "programs": "compiling programs",
    "drafts": "compiling drafts",
}

engine_option = partial(option, "Engine")

ModelOrPlan = Annotated[
    str,
    argument("MODEL|PLAN.json", "a folder, a .gguf file, smollm2-135m-instruct; or a saved plan"),
]
WeightsFrom = Annotated[
    str, workload("--from DIR", "weights for a plan whose model is not a folder or file")
]
Context = Annotated[
    str,
    engine_option(
        "--context N", f"longest sequence  [default: the plan's, or the model's up to {CONTEXT}]"
    ),
]
Sequences = Annotated[
    str,
    engine_option(
        "--sequences N", f"most that run at the same time  [default: the plan's, or {SEQUENCES}]"
    ),
]
PassTokens = Annotated[
    str, engine_option("--chunk N", f"most tokens of a pass  [default: {PASS_TOKENS}]")
]
WeightsDtype = Annotated[
    str, engine_option("--dtype DTYPE", f"of the weights: {', '.join(WEIGHTS_DTYPES)}")
]
KvDtype = Annotated[
    str, engine_option("--kv-dtype DTYPE", f"of the KV cache: {', '.join(KV_DTYPES)}")
]
HostCache = Annotated[
    str,
    engine_option(
        "--host-cache SIZE", "host memory for what the prefix cache evicts: 4GiB  [default: none]"
    ),
]
Draft = Annotated[
    str,
    engine_option(
        "--draft ngram|MODEL", "draft tokens from repetitions in the text, or by a small model"
    ),
]
Drafted = Annotated[
    str, engine_option("--drafted N", f"tokens drafted for each pass  [default: {DRAFTED}]")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineWords:
    """The texts of the engine's options; empty for an option that is not given."""

    context: str = ""
    sequences: str = ""
    chunk: str = ""
    weights: str = ""
    kv: str = ""
    host_cache: str = ""
    draft: str = ""
    drafted: str = ""


def read_engine_options(words: EngineWords) -> EngineOptions:
    """Parse the options of the engine.

    Raises:
        BadInput: with every option that is wrong.
    """
    inputs = Inputs()
    drafted = inputs.optional(units.parse_whole, words.drafted, "--drafted")
    if drafted is not None and not words.draft:
        inputs.refuse("--drafted needs --draft ngram, or --draft with a small model.")
    if drafted is not None and drafted > MOST_DRAFTED:
        inputs.refuse(f"--drafted {drafted:,} is more than the most, {MOST_DRAFTED}.")
    draft_model = None
    if words.draft not in ("", NGRAM):
        draft_model = inputs.read(find_model, words.draft)
    options = EngineOptions(
        context=inputs.optional(units.parse_whole, words.context, "--context"),
        sequences=inputs.optional(units.parse_whole, words.sequences, "--sequences"),
        pass_tokens=inputs.optional(units.parse_whole, words.chunk, "--chunk"),
        weights=inputs.optional(parse_word, words.weights, "dtype", WEIGHTS_DTYPES),
        kv=inputs.optional(parse_word, words.kv, "dtype", KV_DTYPES),
        host_bytes=inputs.optional(units.parse_bytes, words.host_cache, "--host-cache") or 0,
        drafted=(drafted or DRAFTED) if words.draft else 0,
        draft_model=draft_model,
    )
    inputs.done()
    return options


def read_model(text: str, start: str) -> tuple[ServedModel, ServingPlan | None]:
    """The model to load, and the plan under which it is served, if `text` is that of a plan.

    Args:
        text: a model or a saved plan.
        start: where the weights of a plan's model are; empty for the model that it names.

    Raises:
        BadInput: it is a plan of training, or not the path or name of a model.
        BadFile: a file is missing or unreadable.
    """
    if not text.endswith(".json"):
        if start:
            raise BadInput(f"--from belongs to a plan; {text} is a model: leave it out.")
        return find_model(text), None
    plan = load_plan(text)
    if not isinstance(plan, ServingPlan):
        raise BadInput(f"{text} is a plan of training; plan with --serve.")
    if start:
        return find_model(start), plan
    try:
        return find_model(_source(plan)), plan
    except UnknownName:
        raise BadInput(
            f"{text} plans {plan.model.name}, of which the weights are not here. Name a model of "
            f"its sizes that has weights: --from {' | '.join(PACKAGES)}, a folder with "
            "safetensors, or a .gguf file."
        ) from None


def _source(plan: ServingPlan) -> str:
    """The folder of a plan's model, else its name."""
    source = plan.model.source
    if source.endswith("config.json"):
        return source.removesuffix("config.json") or "."
    return source or plan.model.name


@contextmanager
def running_engine(
    model: ServedModel,
    options: EngineOptions,
    plan: ServingPlan | None,
    *,
    quiet: bool,
    recorder: Recorder | None = None,
) -> Iterator[Engine]:
    """The engine of a model, with progress on stderr until it is ready."""
    with (
        _progress(quiet) as progress,
        launched(model, options, plan, progress, recorder) as engine,
    ):
        yield engine


def follow(model: ServedModel, options: EngineOptions, plan: ServingPlan | None) -> None:
    """Be one of several processes of an engine, until it ends."""
    with _progress(quiet=False) as progress:
        launch.follow(model, options, plan, progress)


@contextmanager
def _progress(quiet: bool) -> Iterator[launch.Progress]:
    line = ProgressLine(quiet=quiet)

    def progress(stage: str, done: int, total: int) -> None:
        count = f" {done} of {total}" if total > 1 else ""
        line.show(f"{STAGES[stage]}{count} ...")
        if stage in ("programs", "drafts") and done == total:
            line.clear()

    try:
        yield progress
    finally:
        line.clear()
