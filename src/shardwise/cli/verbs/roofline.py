"""`shardwise roofline "bf16[B,D] x int8[D,F] -> bf16[B,F]" --on v5e B=1-1024*2 D=8192 F=32768`."""

from __future__ import annotations

from typing import Annotated

import typer

import shardwise as sw
from shardwise.cli.answer import Answer
from shardwise.cli.command import Json
from shardwise.cli.inputs import Inputs, parse_chip_of, parse_word
from shardwise.cli.ranges import parse_ranged_sizes, parse_values
from shardwise.estimate.roofs import RooflineResult
from shardwise.report import roofline as report
from shardwise.units import BYTES_PER_ELEMENT, parse_whole

BATCHES = "1-1024*2"


def run(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar='"TYPED MATMUL" DIM=SIZE... | MODEL CHIP',
            help="sizes are numbers; one may be a range, B=1-1024*2",
        ),
    ],
    on: Annotated[str, typer.Option(metavar="CHIP", help="the chip of a typed matmul")] = "",
    op: Annotated[str, typer.Option(metavar="NAME", help="of a model's layer: mlp.up")] = "",
    batch: Annotated[
        str, typer.Option(metavar="RANGE", help=f"sequences, with --op [default: {BATCHES}]")
    ] = "",
    seq: Annotated[
        str, typer.Option(metavar="N", help="tokens of each, with --op; 1 counts tokens")
    ] = "1",
    dtype: Annotated[str, typer.Option(metavar="DTYPE", help="of the weights, with --op")] = "bf16",
    compute: Annotated[
        str, typer.Option(metavar="DTYPE", help="of the arithmetic [default: the activations']")
    ] = "",
    json: Json = False,
) -> Answer:
    """What bounds one operation on a chip, and from which size it is compute-bound."""
    inputs = Inputs()
    for name in filter(None, (dtype, compute)):
        inputs.read(parse_word, name, "dtype", BYTES_PER_ELEMENT)
    if "[" in words[0]:
        result = _typed(inputs, words, on, op, compute)
    else:
        result = _of_model(inputs, words, op, batch or BATCHES, seq, dtype, compute)
    return Answer(document=lambda: result, blocks=report.blocks(result), as_json=json)


def _typed(inputs: Inputs, words: list[str], on: str, op: str, compute: str) -> RooflineResult:
    matmul, *sizes = words
    if op:
        inputs.refuse(f"--op {op} names an operation of a model, and a matmul is written out.")
    if not on:
        inputs.refuse("no chip is given. Add --on CHIP, as --on v5e.")
    chip = inputs.read(parse_chip_of, on) if on else None
    dims = inputs.read(parse_ranged_sizes, sizes)
    inputs.done()
    return sw.roofline(matmul, on=chip or on, sizes=dims, compute=compute or None)


def _of_model(
    inputs: Inputs, words: list[str], op: str, batch: str, seq: str, dtype: str, compute: str
) -> RooflineResult:
    if len(words) != 2:
        inputs.refuse(
            f"{' '.join(words)}: write MODEL CHIP --op mlp.up, or a matmul in quotes: "
            '"bf16[B,D] x bf16[D,F] -> bf16[B,F]".'
        )
        inputs.done()
    if not op:
        inputs.refuse("no operation is given. Add --op NAME, as --op mlp.up.")
    config = inputs.read(sw.model, words[0])
    chip = inputs.read(parse_chip_of, words[1])
    batches = inputs.read(parse_values, batch, "batch")
    length = inputs.read(parse_whole, seq, "seq")
    inputs.done()
    return sw.operation_roofline(
        config, chip, op, batch=batches, seq=length, weights=dtype, compute=compute or None
    )
