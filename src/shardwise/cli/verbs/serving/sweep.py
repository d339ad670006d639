"""`shardwise sweep MODEL HARDWARE --serve --batch 1-64*2 --dtype bf16,int8`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

import shardwise as sw
from shardwise import units
from shardwise.cli.answer import Answer
from shardwise.cli.command import SPLIT, TOLD, WORK, Json, Model
from shardwise.cli.inputs import Inputs, parse_word, parse_words
from shardwise.cli.ranges import parse_values
from shardwise.cli.verbs.serving.plan import parse_machine
from shardwise.cli.verbs.serving.workload import CONTEXT, parse_requests_rate, parse_share
from shardwise.cli.verbs.training.sweep import WORD, N, Whole, counting, parse_machines
from shardwise.errors import NoPlan
from shardwise.plan.serving import sweep
from shardwise.report.serving import sweep as report
from shardwise.report.training.sweep import FORMATS
from shardwise.search.serving.layouts import WORDS


def run(
    model: Model,
    hardware: Annotated[
        str,
        typer.Argument(
            metavar="HARDWARE", help="one or more: v5e:4x4,v5e:4x8, h100:8-32*2; v5e: its slices"
        ),
    ],
    serve: Annotated[
        bool, typer.Option("--serve", help="plan serving", rich_help_panel=WORK)
    ] = False,
    batch: Annotated[
        str, typer.Option(metavar=N, help="sequences that decode at once", rich_help_panel=WORK)
    ] = "",
    context: Annotated[
        str,
        typer.Option(metavar=N, help="tokens of a sequence  [default: 8192]", rich_help_panel=WORK),
    ] = "",
    prompt: Annotated[
        str, typer.Option(metavar=N, help="tokens of a prompt", rich_help_panel=WORK)
    ] = "",
    answer: Annotated[
        str, typer.Option("--output", metavar=N, help="tokens of an answer", rich_help_panel=WORK)
    ] = "",
    dtype: Annotated[
        str,
        typer.Option(metavar=WORD, help="of weights: bf16,fp8,int8,int4", rich_help_panel=WORK),
    ] = "bf16",
    kv_dtype: Annotated[
        str,
        typer.Option(
            metavar=WORD, help="of the KV cache  [default: that of weights]", rich_help_panel=WORK
        ),
    ] = "",
    compute: Annotated[
        str,
        typer.Option(
            metavar=WORD,
            help="of products  [default: the weights' where the chip has it]",
            rich_help_panel=WORK,
        ),
    ] = "",
    rate: Annotated[
        str, typer.Option(metavar="N/s,...", help="requests that arrive", rich_help_panel=WORK)
    ] = "",
    ttft: Annotated[
        str, typer.Option(metavar="TIME,...", help="bound on its mean", rich_help_panel=WORK)
    ] = "",
    tpot: Annotated[
        str, typer.Option(metavar="TIME,...", help="bound on its mean", rich_help_panel=WORK)
    ] = "",
    cached: Annotated[
        str,
        typer.Option(
            metavar="SHARE,...", help="of a prompt in a prefix cache", rich_help_panel=WORK
        ),
    ] = "",
    draft: Annotated[
        str, typer.Option(metavar="0,1,2,...", help="drafted tokens a pass", rich_help_panel=WORK)
    ] = "",
    acceptance: Annotated[
        str, typer.Option(metavar="SHARE,...", help="of drafted tokens", rich_help_panel=WORK)
    ] = "",
    tensor: Whole = "",
    expert: Whole = "",
    pipe: Whole = "",
    fsdp: Whole = "",
    data: Annotated[
        str,
        typer.Option(
            "--replicas",
            "--data",
            metavar=N,
            help="engines side by side on the machine",
            rich_help_panel=SPLIT,
        ),
    ] = "",
    weights: Annotated[
        str,
        typer.Option(
            metavar=WORD, help=f"or all: {', '.join(WORDS['weights'])}", rich_help_panel=SPLIT
        ),
    ] = "",
    kv: Annotated[
        str,
        typer.Option(metavar=WORD, help=f"or all: {', '.join(WORDS['kv'])}", rich_help_panel=SPLIT),
    ] = "",
    disaggregate: Annotated[
        bool | None,
        typer.Option(
            "--disaggregate/--no-disaggregate",
            help="engines of their own for prompts",
            rich_help_panel=SPLIT,
        ),
    ] = None,
    peak: Annotated[
        bool, typer.Option("--peak", help="expect peak rates", rich_help_panel=TOLD)
    ] = False,
    file: Annotated[
        str, typer.Option("-o", metavar="FORMAT", help=", ".join(FORMATS), rich_help_panel=TOLD)
    ] = "",
    json: Json = False,
) -> Answer:
    """The best deployment for every combination of options: ranges or lists of any of them."""
    inputs = Inputs()
    if context and (prompt or answer):
        inputs.refuse("--context is --prompt and --output together. Give it, or those two.")
    if bool(prompt) != bool(answer):
        inputs.refuse("--prompt and --output belong together: give both, or --context alone.")
    if rate and not answer:
        inputs.refuse("--rate needs the length of requests: --prompt N --output N.")
    if acceptance and not draft:
        inputs.refuse("--acceptance needs --draft, the tokens that are drafted for each pass.")
    config = inputs.read(sw.model, model)
    machines = inputs.read(parse_machines, hardware, parse_machine)
    lengths = {} if prompt or answer else {"context": context or CONTEXT}
    numbers = lengths | {
        "prompt": prompt, "output": answer, "batch": batch, "drafted": draft, "tensor": tensor,
        "expert": expert, "pipe": pipe, "fsdp": fsdp, "data": data,
    }  # fmt: skip
    dtypes = tuple(units.BYTES_PER_ELEMENT)
    words = {
        "dtype": (dtype, dtypes), "kv_dtype": (kv_dtype, dtypes), "compute": (compute, dtypes),
        "weights": (weights, WORDS["weights"]), "kv": (kv, WORDS["kv"]),
    }  # fmt: skip
    amounts: dict[str, tuple[str, Callable[[str], float]]] = {
        "rate": (rate, parse_requests_rate),
        "ttft_s": (ttft, lambda text: units.parse_seconds(text, "--ttft")),
        "tpot_s": (tpot, lambda text: units.parse_seconds(text, "--tpot")),
        "cached": (cached, lambda text: parse_share(text, "--cached")),
        "acceptance": (acceptance, lambda text: parse_share(text, "--acceptance")),
    }
    options = {**_words(inputs, words), **_numbers(inputs, numbers), **_amounts(inputs, amounts)}
    if file:
        inputs.read(parse_word, file, "format", FORMATS)
    inputs.done()
    with counting("deployments") as progress:
        found = sweep.sweep(
            config, machines, sw.Serve(context=1), peak=peak, disaggregate=disaggregate,
            progress=progress, **options,
        )  # fmt: skip
    some = any(row.step_s for row in found.rows)
    return Answer(
        document=lambda: found,
        blocks=() if file else report.blocks(found),
        raw=report.text(found, file) if file else "",
        as_json=json,
        exit_code=0 if some else NoPlan.exit_code,
    )


def _numbers(inputs: Inputs, given: Mapping[str, str]) -> dict[str, tuple[int, ...]]:
    return {
        name: inputs.read(parse_values, text, name, 0 if name == "drafted" else 1)
        for name, text in given.items()
        if text
    }


def _words(
    inputs: Inputs, given: Mapping[str, tuple[str, tuple[str, ...]]]
) -> dict[str, tuple[str, ...]]:
    return {
        name: known if text == "all" else inputs.read(parse_words, text, name, known)
        for name, (text, known) in given.items()
        if text
    }


def _amounts(
    inputs: Inputs, given: Mapping[str, tuple[str, Callable[[str], float]]]
) -> dict[str, tuple[Any, ...]]:
    return {
        name: tuple(inputs.read(parse, word) for word in text.split(","))
        for name, (text, parse) in given.items()
        if text
    }
