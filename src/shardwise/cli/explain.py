"""`shardwise explain PLAN.json`, or `shardwise explain MODEL HARDWARE --batch 1120x4096`.

`--serve` is in `explain_serve`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

import shardwise as sw
from shardwise.cli.answer import Answer
from shardwise.cli.command import Json
from shardwise.cli.inputs import Inputs, parse_fixed, parse_word, split_of
from shardwise.cli.jobs import read_job
from shardwise.cli.progress import progress
from shardwise.errors import BadInput
from shardwise.hardware.scale import SCALABLE
from shardwise.report.training import explain as report
from shardwise.vocabulary import REMAT_WORDS
from shardwise.workload import OPTIMIZER_MOMENTS

_CHANGE = re.compile(r"\s*(?P<name>[\w]+)\s*[x×*]\s*(?P<factor>\S+)\s*", re.IGNORECASE)
CHANGES = f'on another machine: "ici x0.5,hbm x2"; {", ".join(SCALABLE)}'
MOST_CHANGE = 1000.0  # a factor beyond it is a slip: no two chips differ so


def choose(name: str, args: Sequence[str]) -> tuple[str, Callable[..., Answer]]:
    """The verb as its help calls it, and the function with its options: of training or serving."""
    if "--serve" in args:
        from shardwise.cli import explain_serve

        return f"{name} --serve", explain_serve.run
    return name, run


def run(
    plan: Annotated[
        str, typer.Argument(metavar="PLAN.json|MODEL", help="a saved plan, or a model")
    ],
    hardware: Annotated[
        str, typer.Argument(metavar="[HARDWARE]", help="of a model: v5p:16x20x28, h100:64")
    ] = "",
    serve: Annotated[
        bool, typer.Option("--serve", help="of serving: shardwise explain --serve --help")
    ] = False,
    what_if: Annotated[str, typer.Option(metavar="NAMExF,...", help=CHANGES)] = "",
    batch: Annotated[str, typer.Option(metavar="NxT", help="of a model: the global batch")] = "",
    tokens: Annotated[str, typer.Option(metavar="N", help="tokens of the whole run")] = "",
    mesh: Annotated[str, typer.Option(metavar="ROLE=N,...", help="take this split")] = "",
    fix: Annotated[str, typer.Option(metavar="WHAT=...", help="search with these")] = "",
    remat: Annotated[str, typer.Option(metavar="WORD", help=", ".join(REMAT_WORDS))] = "auto",
    dtype: Annotated[str, typer.Option(metavar="DTYPE", help="of the arithmetic")] = "bf16",
    optimizer: Annotated[
        str, typer.Option(metavar="NAME", help=", ".join(OPTIMIZER_MOMENTS))
    ] = "adamw",
    peak: Annotated[bool, typer.Option("--peak", help="expect peak rates")] = False,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="the way to the split, and what would win")
    ] = False,
    json: Json = False,
) -> Answer:
    """What binds a plan and by how much, what it hangs on, and what would change the answer."""
    inputs = Inputs()
    factors = inputs.read(parse_changes, what_if) if what_if else {}
    if hardware:
        read = inputs.read(
            _asked, plan, hardware, (batch, tokens, dtype, optimizer, remat), mesh, fix
        )
        inputs.done()
        model, system, job, whole, fixed = read
        with progress(f"searching splits of {system.n_chips:,} chips"):
            if whole:
                split, words = split_of(whole)
                given = sw.evaluate(model, system, job, split, words, peak=peak)
            else:
                given = sw.plan(model, system, job, fixed, peak=peak)
    else:
        named = {"--batch": batch, "--tokens": tokens, "--mesh": mesh, "--fix": fix}
        extra = [name for name, value in named.items() if value]
        if extra:
            inputs.refuse(f"{', '.join(extra)}: a saved plan has its own. Name MODEL HARDWARE.")
        loaded = inputs.read(load_any, plan)
        inputs.done()
        if isinstance(loaded, sw.ServingPlan):
            from shardwise.cli.explain_serve import answer

            return answer(loaded, factors, verbose=verbose, as_json=json)
        given = loaded
    with progress("searching again, around the plan"):
        told = sw.explain(given, factors, search=verbose or json or not factors)
    return Answer(document=lambda: told, blocks=report.blocks(told, verbose=verbose), as_json=json)


Asked = tuple[sw.ModelConfig, sw.System, sw.Train, dict[str, int | str], dict[str, int | str]]


def _asked(
    model: str, hardware: str, words: tuple[str, str, str, str, str], mesh: str, fix: str
) -> Asked:
    """What a plan is searched for, from the words of the command line."""
    inputs = Inputs()
    if mesh and fix:
        inputs.refuse("--mesh gives the whole split, --fix a part of it. Use one.")
    config = inputs.read(sw.model, model)
    system = inputs.read(sw.hardware, hardware)
    job = inputs.read(read_job, *words)
    whole = inputs.read(parse_fixed, mesh) if mesh else {}
    fixed = inputs.read(parse_fixed, fix) if fix else {}
    inputs.done()
    return config, system, job, whole, fixed


def load_any(path: str) -> sw.Plan | sw.ServingPlan:
    """A plan of either kind.

    Raises:
        BadInput: no plan.json. BadFile: one that cannot be read.
    """
    if not path.endswith(".json"):
        raise BadInput(
            f'"{path}" is no plan.json. Write shardwise explain plan.json, or '
            f"shardwise explain {path} HARDWARE --batch NxT, or --serve."
        )
    return sw.load(path)


def parse_changes(text: str) -> dict[str, float]:
    """`ici x0.5, hbm x2` -> factors by name.

    >>> parse_changes("ici x0.5,flops x2")
    {'ici': 0.5, 'flops': 2.0}

    Raises:
        BadInput: with every part that is wrong.
    """
    inputs = Inputs()
    found: dict[str, float] = {}
    for part in text.split(","):
        match = _CHANGE.fullmatch(part)
        if not match:
            inputs.refuse(f'--what-if "{part.strip()}" is not NAME xFACTOR, as "ici x0.5".')
            continue
        name = inputs.read(parse_word, match["name"], "number of the hardware", SCALABLE)
        factor = inputs.read(_factor, match["factor"])
        if name in found:
            inputs.refuse(f"--what-if {name} is given twice.")
        found[name] = factor
    inputs.done()
    return found


def _factor(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise BadInput(f'--what-if: "{text}" is not a number.') from None
    if not 1 / MOST_CHANGE <= value <= MOST_CHANGE:
        raise BadInput(
            f"--what-if x{text}: a factor is between {1 / MOST_CHANGE:g} and {MOST_CHANGE:g}."
        )
    return value
