"""`shardwise explain MODEL HARDWARE --serve --batch 32`; of a saved plan, `explain PLAN.json`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

import shardwise as sw
from shardwise.cli.answer import Answer
from shardwise.cli.command import Json
from shardwise.cli.explain import CHANGES, load_any, parse_changes
from shardwise.cli.inputs import Inputs, roles
from shardwise.cli.plan_serve import chip_of, parse_machine
from shardwise.cli.progress import progress
from shardwise.cli.requests import parse_serving, read_requests
from shardwise.errors import BadInput
from shardwise.plan.serving import build
from shardwise.plan.serving.explain import explain
from shardwise.report.document import document
from shardwise.report.serving import explain as report


def run(
    plan: Annotated[
        str, typer.Argument(metavar="PLAN.json|MODEL", help="a saved plan, or a model")
    ],
    hardware: Annotated[
        str, typer.Argument(metavar="[HARDWARE]", help="of a model: v5e:4x4, h200:16, h200")
    ] = "",
    serve: Annotated[bool, typer.Option("--serve", help="explain serving")] = False,
    what_if: Annotated[str, typer.Option(metavar="NAMExF,...", help=CHANGES)] = "",
    prompt: Annotated[str, typer.Option(metavar="N", help="tokens of a prompt: 2048")] = "",
    output: Annotated[
        str, typer.Option("--output", metavar="N", help="tokens of an answer: 512")
    ] = "",
    context: Annotated[
        str, typer.Option(metavar="N", help="tokens of a sequence  [default: 8192]")
    ] = "",
    batch: Annotated[str, typer.Option(metavar="N", help="sequences that decode at once")] = "",
    rate: Annotated[str, typer.Option(metavar="N/s", help="requests that arrive: 20/s")] = "",
    ttft: Annotated[str, typer.Option(metavar="TIME", help="bound on its mean")] = "",
    tpot: Annotated[str, typer.Option(metavar="TIME", help="bound on its mean")] = "",
    dtype: Annotated[str, typer.Option(metavar="DTYPE,...", help="of the weights")] = "bf16",
    kv_dtype: Annotated[
        str, typer.Option(metavar="DTYPE", help="of the KV cache  [default: that of the weights]")
    ] = "",
    compute: Annotated[
        str,
        typer.Option(
            metavar="DTYPE", help="of products  [default: the weights' where the chip has it]"
        ),
    ] = "",
    cached: Annotated[str, typer.Option(metavar="SHARE", help="of a prompt, in a cache")] = "",
    draft: Annotated[str, typer.Option(metavar="K", help="drafted tokens of a pass")] = "",
    acceptance: Annotated[str, typer.Option(metavar="SHARE", help="of drafted tokens")] = "",
    disaggregate: Annotated[
        bool | None,
        typer.Option("--disaggregate/--no-disaggregate", help="engines of their own for prompts"),
    ] = None,
    mesh: Annotated[str, typer.Option(metavar="ROLE=N,...", help="take this engine")] = "",
    fix: Annotated[str, typer.Option(metavar="WHAT=...", help="search with these")] = "",
    peak: Annotated[bool, typer.Option("--peak", help="expect peak rates")] = False,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="the decisions in the order of the book")
    ] = False,
    json: Json = False,
) -> Answer:
    """What binds a deployment at which batch, from where on, and what each change would buy."""
    inputs = Inputs()
    factors = inputs.read(parse_changes, what_if) if what_if else {}
    words = {
        "prompt": prompt, "output": output, "context": context, "batch": batch, "rate": rate,
        "ttft": ttft, "tpot": tpot, "cached": cached, "draft": draft, "acceptance": acceptance,
        "draft-cost": "",
    }  # fmt: skip
    if not hardware:
        named = {**words, "mesh": mesh, "fix": fix}
        extra = [f"--{name}" for name, value in named.items() if value]
        if extra:
            inputs.refuse(f"{', '.join(extra)}: a saved plan has its own. Name MODEL HARDWARE.")
        loaded = inputs.read(_load, plan)
        inputs.done()
        return answer(loaded, factors, verbose=verbose, as_json=json)
    if mesh and fix:
        inputs.refuse("--mesh gives the whole engine, --fix a part of it. Use one.")
    config = inputs.read(sw.model, plan)
    where = inputs.read(parse_machine, hardware)
    chip = chip_of(where) if where else None
    jobs = inputs.read(read_requests, words, (dtype, kv_dtype, compute), chip)
    fixed = inputs.read(parse_serving, mesh or fix) if mesh or fix else {}
    inputs.done()
    if mesh:
        fixed = {**{role: 1 for role in roles() if role != "data"}, **fixed}
    with progress(f"searching engines of {hardware}"):
        found = build.plan(config, where, jobs, fixed, peak=peak, disaggregate=disaggregate)
    return answer(found, factors, verbose=verbose, as_json=json)


def answer(
    plan: sw.ServingPlan, factors: Mapping[str, float], *, verbose: bool, as_json: bool
) -> Answer:
    """What `explain` says of a serving plan."""
    told = explain(plan, factors)
    return Answer(
        document=lambda: document(told),
        blocks=report.blocks(told, verbose=verbose),
        as_json=as_json,
    )


def _load(path: str) -> sw.ServingPlan:
    plan = load_any(path)
    if not isinstance(plan, sw.ServingPlan):
        raise BadInput(f"{path} is a plan of training: leave --serve out.")
    return plan
