"""`shardwise roofline "bf16[B,D] x int8[D,F] -> bf16[B,F]" --on v5e B=1-1024*2 D=8192 F=32768`."""

from __future__ import annotations

from typing import Annotated

import shardwise as sw
from shardwise.cli import options
from shardwise.cli.answer import Answer
from shardwise.cli.inputs import Inputs, parse_word
from shardwise.cli.machines import parse_chip
from shardwise.cli.options import argument, workload
from shardwise.cli.ranges import parse_ranged_sizes, parse_values
from shardwise.formulas.chip_roofline import RooflineResult
from shardwise.report import roofline as report
from shardwise.units import BYTES_PER_ELEMENT, parse_length


def run(
    words: Annotated[
        list[str],
        argument(
            '"TYPED MATMUL" DIM=SIZE... | MODEL CHIP',
            "sizes are numbers; one may be a range, B=1-1024*2",
        ),
    ],
    on: options.TargetHardware = "",
    op: Annotated[str, workload("--op NAME", "an operation of a model's layer: mlp.up")] = "",
    batch: options.SequenceCount = "1-1024*2",
    seq: options.SequenceLength = "1",
    dtype: options.WeightDtype = "bf16",
    compute: options.ComputeDtype = "",
    json: options.Json = False,
) -> Answer:
    """What bounds one operation on a chip, and from which size it is compute-bound. A matmul needs
    --on, an operation of a model --op; --batch (a range), --seq and --dtype apply to --op."""
    inputs = Inputs()
    inputs.optional(parse_word, dtype, "dtype", BYTES_PER_ELEMENT)
    inputs.optional(parse_word, compute, "dtype", BYTES_PER_ELEMENT)
    if "[" in words[0]:
        result = _matmul(inputs, words, on, op, compute)
    else:
        result = _of_model(inputs, words, op, batch, seq, dtype, compute)
    return Answer(document=lambda: result, blocks=report.blocks(result), as_json=json)


def _matmul(inputs: Inputs, words: list[str], on: str, op: str, compute: str) -> RooflineResult:
    matmul, *sizes = words
    if op:
        inputs.refuse(f"--op {op} names an operation of a model, and a matmul is written out.")
    if not on:
        inputs.refuse("no chip is given. Add --on CHIP, as --on v5e.")
    chip = inputs.optional(parse_chip, on)
    dim_sizes = inputs.read(parse_ranged_sizes, sizes)
    inputs.done()
    return sw.roofline(matmul, on=chip or on, sizes=dim_sizes, compute=compute or None)


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
    chip = inputs.read(parse_chip, words[1])
    batches = inputs.read(parse_values, batch, "batch")
    length = inputs.read(parse_length, seq, "seq")
    inputs.done()
    return sw.operation_roofline(
        config, chip, op, batch=batches, seq=length, weights=dtype, compute=compute or None
    )
