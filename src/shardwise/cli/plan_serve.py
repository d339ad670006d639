"""`shardwise plan MODEL HARDWARE --serve --prompt 2048 --output 512 --rate 20/s --tpot 30ms`."""

from __future__ import annotations

from typing import Annotated

import typer

import shardwise as sw
from shardwise.cli.answer import Answer
from shardwise.cli.command import Json, Model
from shardwise.cli.inputs import Inputs, is_sized, parse_mesh, roles
from shardwise.cli.plan import parse_count
from shardwise.cli.progress import progress
from shardwise.cli.requests import parse_serving, read_requests
from shardwise.cli.traffic import read_traffic
from shardwise.plan.serving import build
from shardwise.report.document import document, save
from shardwise.report.serving import plan as report


def run(
    model: Model,
    hardware: Annotated[
        str,
        typer.Argument(
            metavar="HARDWARE", help="v5e:4x4, h200:16; v5e alone: which slice is asked"
        ),
    ],
    serve: Annotated[bool, typer.Option("--serve", help="plan serving")] = False,
    prompt: Annotated[str, typer.Option(metavar="N", help="tokens of a prompt: 2048")] = "",
    output: Annotated[
        str, typer.Option("--output", metavar="N", help="tokens of an answer: 512")
    ] = "",
    context: Annotated[
        str,
        typer.Option(metavar="N", help="tokens of a sequence, instead of both  [default: 8192]"),
    ] = "",
    batch: Annotated[
        str, typer.Option(metavar="N", help="sequences that decode at once  [default: the best]")
    ] = "",
    rate: Annotated[str, typer.Option(metavar="N/s", help="requests that arrive: 20/s")] = "",
    ttft: Annotated[
        str, typer.Option(metavar="TIME", help="bound on the time to the first token: 500ms")
    ] = "",
    tpot: Annotated[
        str, typer.Option(metavar="TIME", help="bound on the time of each further one: 30ms")
    ] = "",
    traffic: Annotated[
        str,
        typer.Option(
            metavar="KIND",
            help="poisson, constant, bursty[:CV], or requests in a .csv or .jsonl; off: means "
            "alone  [default: poisson under --rate]",
        ),
    ] = "",
    at: Annotated[
        str,
        typer.Option(
            metavar="pN", help="of so many requests in 100 the bounds hold  [default: p99]"
        ),
    ] = "",
    capacity: Annotated[
        bool, typer.Option("--capacity", help="find the largest rate within the bounds")
    ] = False,
    dtype: Annotated[
        str, typer.Option(metavar="DTYPE,...", help="of the weights; of several the best: bf16,fp8")
    ] = "bf16",
    kv_dtype: Annotated[
        str, typer.Option(metavar="DTYPE", help="of the KV cache  [default: that of the weights]")
    ] = "",
    compute: Annotated[
        str,
        typer.Option(
            metavar="DTYPE", help="of products  [default: the weights' where the chip has it]"
        ),
    ] = "",
    cached: Annotated[
        str, typer.Option(metavar="SHARE", help="of a prompt that a prefix cache has: 50%")
    ] = "",
    draft: Annotated[
        str, typer.Option(metavar="K", help="tokens that a small model drafts for each pass")
    ] = "",
    acceptance: Annotated[
        str, typer.Option(metavar="SHARE", help="of drafted tokens that are kept  [default: 0.7]")
    ] = "",
    draft_cost: Annotated[
        str, typer.Option(metavar="SHARE", help="small model's pass over the large  [default: 5%]")
    ] = "",
    disaggregate: Annotated[
        bool | None,
        typer.Option(
            "--disaggregate/--no-disaggregate",
            help="engines of their own for prompts  [default: what is better within bounds]",
        ),
    ] = None,
    mesh: Annotated[
        str,
        typer.Option(metavar="ROLE=N,...", help="take this engine: tensor=8,expert=2,kv=batch"),
    ] = "",
    fix: Annotated[
        str, typer.Option(metavar="WHAT=...", help="search with these: tensor=8,weights=2d")
    ] = "",
    most: Annotated[
        str, typer.Option("--max", metavar="ROLE=N,...", help="search up to these: tensor=8,pipe=1")
    ] = "",
    peak: Annotated[
        bool, typer.Option("--peak", help="expect peak rates, as the book does")
    ] = False,
    top: Annotated[str, typer.Option(metavar="N", help="list the N best deployments")] = "1",
    file: Annotated[str, typer.Option("-o", metavar="FILE", help="save the plan as JSON")] = "",
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="show all tables")] = False,
    json: Json = False,
) -> Answer:
    """How to serve a model: engines, batch, latency, throughput, cost and reasons."""
    inputs = Inputs()
    if mesh and (fix or most):
        inputs.refuse("--mesh gives the whole engine, --fix and --max a part of it. Use one.")
    config = inputs.read(sw.model, model)
    where = inputs.read(parse_machine, hardware)
    words = {
        "prompt": prompt,
        "output": output,
        "context": context,
        "batch": batch,
        "rate": rate,
        "ttft": ttft,
        "tpot": tpot,
        "cached": cached,
        "draft": draft,
        "acceptance": acceptance,
        "draft-cost": draft_cost,
    }
    chip = chip_of(where) if where else None
    arrivals = inputs.read(read_traffic, traffic, at, capacity, words)
    if arrivals and arrivals.trace is not None:
        words |= {"prompt": "1", "output": "1"}  # the recording has them
    jobs = inputs.read(read_requests, words, (dtype, kv_dtype, compute), chip)
    fixed = inputs.read(parse_serving, mesh or fix) if mesh or fix else {}
    limits = inputs.read(parse_mesh, most, roles()) if most else {}
    n = inputs.read(parse_count, top)
    inputs.done()
    if mesh:
        fixed = {**{role: 1 for role in roles() if role != "data"}, **fixed}
    with progress(f"searching engines of {hardware}"):
        plans = build.search(
            config,
            where,
            jobs,
            fixed,
            n,
            most=limits,
            peak=peak,
            disaggregate=disaggregate,
            arrivals=arrivals,
            largest=capacity,
        )
    best = plans[0]
    if file:
        save(best, file)
    blocks = [*report.blocks(best, verbose=verbose, saved=file)]
    if n > 1:
        blocks = [*blocks, "", report.ranked(plans)]
    return Answer(
        document=lambda: document(best) if n == 1 else {"plans": [*map(document, plans)]},
        blocks=blocks,
        as_json=json,
    )


def parse_machine(text: str) -> sw.System | sw.Chip:
    """A machine, or the chip whose machines are searched."""
    return sw.hardware(text) if is_sized(text) else sw.chip(text)


def chip_of(where: sw.System | sw.Chip) -> sw.Chip:
    """The chip of a machine."""
    return where.chip if isinstance(where, sw.System) else where
