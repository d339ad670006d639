"""`shardwise sweep MODEL HARDWARE --train --batch 512-2048*2x4096 --tensor 1,2,4,8`."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, TypeVar

import typer

import shardwise as sw
from shardwise import units
from shardwise.cli.answer import Answer
from shardwise.cli.command import SPLIT, TOLD, WORK, Json, Model
from shardwise.cli.inputs import Inputs, parse_word, parse_words
from shardwise.cli.jobs import listed
from shardwise.cli.ranges import MOST_POINTS, parse_batches, parse_values
from shardwise.errors import BadShape, NoPlan
from shardwise.report.training import sweep as report
from shardwise.search.training.forms import words
from shardwise.vocabulary import CHOSEN_OFFLOADS, CHOSEN_OVERLAPS, REMAT_WORDS
from shardwise.workload import OPTIMIZER_MOMENTS

N, WORD = "1-8*2|1,2", "WORD,..."
KNOWN = words()
SIZES = re.compile(r"(?P<chip>[^:,]+):(?P<sizes>[^:,x*]+-[^:,x]+)$")
PATIENCE_LINE = "\r{done:,} of {n:,} {what} ..."
Whole = Annotated[str, typer.Option(metavar=N, rich_help_panel=SPLIT)]
Machine = TypeVar("Machine", sw.System, sw.System | sw.Chip)


def choose(name: str, args: Sequence[str]) -> tuple[str, Callable[..., Answer | None]]:
    """The verb as its help calls it, and the function with its options: of training or serving."""
    if "--serve" in args and "--train" not in args:
        from shardwise.cli import sweep_serve

        return f"{name} --serve", sweep_serve.run
    return name, run


def run(
    model: Model,
    hardware: Annotated[
        str,
        typer.Argument(metavar="HARDWARE", help="one or more: h100:64-1024*2, v5e:4x4,v5p:4x4x4"),
    ],
    train: Annotated[
        bool, typer.Option("--train", help="plan training steps", rich_help_panel=WORK)
    ] = False,
    serve: Annotated[
        bool,
        typer.Option(
            "--serve", help="plan serving: shardwise sweep --serve --help", rich_help_panel=WORK
        ),
    ] = False,
    batch: Annotated[
        str,
        typer.Option(
            metavar="NxT",
            help="512-2048*2x4096: either one a range or a list",
            rich_help_panel=WORK,
        ),
    ] = "",
    tokens: Annotated[
        str, typer.Option(metavar="N", help="tokens of the whole run", rich_help_panel=WORK)
    ] = "",
    tensor: Whole = "",
    context: Whole = "",
    expert: Whole = "",
    fsdp: Whole = "",
    data: Whole = "",
    pipe: Whole = "",
    microbatches: Annotated[
        str, typer.Option(metavar=N, help="of a step", rich_help_panel=SPLIT)
    ] = "",
    micro_batch: Annotated[
        str, typer.Option(metavar=N, help="sequences of one", rich_help_panel=SPLIT)
    ] = "",
    virtual: Annotated[
        str, typer.Option(metavar=N, help="chunks of an interleaved stage", rich_help_panel=SPLIT)
    ] = "",
    zero: Annotated[str, typer.Option(metavar="0,1,2,3", rich_help_panel=SPLIT)] = "",
    schedule: Annotated[
        str,
        typer.Option(
            metavar=WORD, help=f"or all: {', '.join(KNOWN['schedule'])}", rich_help_panel=SPLIT
        ),
    ] = "",
    context_kind: Annotated[
        str,
        typer.Option(
            metavar=WORD, help=f"or all: {', '.join(KNOWN['context_kind'])}", rich_help_panel=SPLIT
        ),
    ] = "",
    remat: Annotated[
        str,
        typer.Option(metavar=WORD, help=f"or all: {', '.join(REMAT_WORDS)}", rich_help_panel=SPLIT),
    ] = "auto",
    dtype: Annotated[
        str, typer.Option(metavar=WORD, help="of the arithmetic", rich_help_panel=WORK)
    ] = "bf16",
    optimizer: Annotated[
        str,
        typer.Option(
            metavar=WORD, help=f"or all: {', '.join(OPTIMIZER_MOMENTS)}", rich_help_panel=WORK
        ),
    ] = "adamw",
    reduce: Annotated[
        str, typer.Option(metavar=WORD, help="gradients are sent in it", rich_help_panel=WORK)
    ] = "",
    overlap: Annotated[
        str, typer.Option(metavar="WORDS", help=", ".join(CHOSEN_OVERLAPS), rich_help_panel=SPLIT)
    ] = "",
    offload: Annotated[
        str, typer.Option(metavar="WORDS", help=", ".join(CHOSEN_OFFLOADS), rich_help_panel=SPLIT)
    ] = "",
    peak: Annotated[
        bool, typer.Option("--peak", help="expect peak rates", rich_help_panel=TOLD)
    ] = False,
    output: Annotated[
        str,
        typer.Option(
            "-o", "--output", metavar="FORMAT", help=", ".join(report.FORMATS), rich_help_panel=TOLD
        ),
    ] = "",
    json: Json = False,
) -> Answer:
    """The best plan for every combination of options: numbers are ranges or lists, words lists."""
    inputs = Inputs()
    if serve:
        inputs.refuse("--train and --serve are different work. Ask for one of them.")
    elif not train:
        inputs.refuse("what to plan is not said. Add --train or --serve.")
    numbers = {
        "tensor": tensor, "context": context, "expert": expert, "fsdp": fsdp, "data": data,
        "pipe": pipe, "n_microbatches": microbatches, "micro_batch": micro_batch,
        "virtual": virtual, "zero": zero,
    }  # fmt: skip
    words = {
        "schedule": (schedule, KNOWN["schedule"]),
        "context_kind": (context_kind, KNOWN["context_kind"]),
        "remat": (remat, REMAT_WORDS),
        "optimizer": (optimizer, tuple(OPTIMIZER_MOMENTS)),
        "dtype": (dtype, tuple(units.BYTES_PER_ELEMENT)),
        "reduce": (reduce, tuple(units.BYTES_PER_ELEMENT)),
    }
    config = inputs.read(sw.model, model)
    systems = inputs.read(parse_systems, hardware)
    sizes = inputs.read(_batches, batch)
    options = {**_numbers(inputs, numbers), **_words(inputs, words)}
    total = inputs.read(units.parse_count, tokens, "tokens") if tokens else None
    hidden = inputs.read(_known, overlap, "overlap", CHOSEN_OVERLAPS)
    waiting = inputs.read(_known, offload, "offload", CHOSEN_OFFLOADS)
    if output:
        inputs.read(parse_word, output, "format", report.FORMATS)
    inputs.done()
    job = sw.Train(batch=1, seq=1, tokens=total, overlap=hidden, offload=waiting)
    with counting("plans") as progress:
        found = sw.sweep(config, systems, job, peak=peak, progress=progress, **sizes, **options)
    some = any(row.step_s for row in found.rows)
    return Answer(
        document=lambda: found,
        blocks=() if output else report.blocks(found),
        raw=report.text(found, output) if output else "",
        as_json=json,
        exit_code=0 if some else NoPlan.exit_code,
    )


@contextlib.contextmanager
def counting(what: str) -> Iterator[Callable[[int, int], None]]:
    """A line on the terminal that counts while the rows are searched."""
    stream, width = sys.stderr, 0

    def count(done: int, n: int) -> None:
        nonlocal width
        if stream.isatty() and n > 1:
            line = PATIENCE_LINE.format(done=done, n=n, what=what)
            width = max(width, len(line))
            stream.write(line)
            stream.flush()

    try:
        yield count
    finally:
        if width:
            stream.write("\r" + " " * width + "\r")
            stream.flush()


def _batches(text: str) -> dict[str, tuple[int, ...]]:
    """Sequences and lengths, each on its own: the sweep takes all pairs."""
    if not text:
        raise BadShape(
            "no batch is given. Add --batch SEQUENCESxLENGTH, as --batch 512-2048*2x4096."
        )
    pairs = parse_batches(text)
    first, second = zip(*pairs, strict=True)
    return {"batch": tuple(dict.fromkeys(first)), "seq": tuple(dict.fromkeys(second))}


def _numbers(inputs: Inputs, given: Mapping[str, str]) -> dict[str, tuple[int, ...]]:
    return {
        name: inputs.read(parse_values, text, name.replace("_", " "), 0 if name == "zero" else 1)
        for name, text in given.items()
        if text
    }


def _words(
    inputs: Inputs, given: Mapping[str, tuple[str, tuple[str, ...]]]
) -> dict[str, tuple[str, ...]]:
    found = {}
    for name, (text, known) in given.items():
        if text == "all":
            left_out = ("auto",) if name == "remat" else ("none",)
            found[name] = tuple(word for word in known if word not in left_out)
        elif text:
            found[name] = inputs.read(parse_words, text, name.replace("_", " "), known)
    return found


def _known(text: str, what: str, known: tuple[str, ...]) -> tuple[str, ...]:
    inputs = Inputs()
    for word in listed(text):
        inputs.read(parse_word, word, what, known)
    inputs.done()
    return listed(text)


def parse_systems(text: str) -> list[sw.System]:
    """`h100:64-256*2,v5e:4x4` -> machines. `64,128` after a chip are more sizes of it.

    A range of sizes takes a number of chips; `KEY=VALUE` after a comma belongs to what stands
    before it.

    Raises:
        BadInput: with every machine that is none.
    """
    return parse_machines(text, sw.hardware)


def parse_machines(text: str, parse: Callable[[str], Machine]) -> list[Machine]:
    """The same, each read by `parse`. Raises as `parse_systems` does."""
    inputs = Inputs()
    found = [machine for word in _machines(inputs, text) if (machine := inputs.read(parse, word))]
    if len(found) > MOST_POINTS:
        inputs.refuse(f"hardware is {len(found):,} machines; at most {MOST_POINTS:,} are compared.")
    names = [machine.name for machine in found]
    for name in dict.fromkeys(names):
        if names.count(name) > 1:
            inputs.refuse(f"hardware {name} is given twice.")
    inputs.done()
    return found


def _machines(inputs: Inputs, text: str) -> Iterator[str]:
    """Single machines with their overrides."""
    words: list[list[str]] = []  # machine, override, override ...
    for part in (part.strip() for part in text.split(",")):
        if "=" in part and words:
            words[-1].append(part)
        elif ":" not in part and words and ":" in words[-1][0]:
            words.append([f"{words[-1][0].partition(':')[0]}:{part}"])
        else:
            words.append([part])
    for machine, *overrides in words:
        match = SIZES.fullmatch(machine)
        sizes = inputs.read(parse_values, match["sizes"], "chips") if match else None
        for name in [f"{match['chip']}:{n}" for n in sizes] if match and sizes else [machine]:
            yield ",".join((name, *overrides))
