"""`shardwise thresholds MODEL HARDWARE`, `shardwise thresholds F=28672 v5p`."""

from __future__ import annotations

from typing import Annotated

import shardwise as sw
from shardwise import units
from shardwise.cli import options
from shardwise.cli.answer import Answer
from shardwise.cli.inputs import Inputs, parse_word
from shardwise.cli.machines import parse_machine
from shardwise.cli.options import argument
from shardwise.errors import BadInput
from shardwise.formulas.limits import Widths, best_split, limits
from shardwise.hardware import chip_of
from shardwise.report import limits as report

SIZES = {"F": "d_ff", "E": "n_experts", "k": "experts_per_token"}


def run(
    model: Annotated[str, argument("MODEL|SIZES", "a model, or F=28672, or F=2048,E=256,k=8")],
    hardware: Annotated[str, argument("HARDWARE", "a chip, v5p; or a machine, v5p:8x8x8")],
    batch: options.GlobalBatch = "",
    dtype: options.TrainingDtype = "bf16",
    json: options.Json = False,
) -> Answer:
    """From which sizes on a layer is compute-bound: tokens of a chip, degrees of tensor
    parallelism, by every network of the chip, with formula, numbers and section of the book.
    --batch and a machine give the tokens of a chip, and on a TPU the best split."""
    inputs = Inputs()
    widths = inputs.read(_widths, model)
    machine = inputs.read(parse_machine, hardware)
    inputs.read(parse_word, dtype, "dtype", units.BYTES_PER_ELEMENT)
    sequences = inputs.optional(units.parse_batch, batch)
    system = machine if isinstance(machine, sw.System) else None
    if sequences and machine and not system:
        inputs.refuse("--batch needs the chips of a machine, as h100:64 or v5p:8x8x8.")
    inputs.done()
    chip = chip_of(machine)
    rows = limits(widths, chip, dtype)
    split = tokens_per_chip = None
    if sequences and system:
        tokens = float(sequences[0] * sequences[1])
        split = best_split(widths, chip, system.n_chips, tokens)
        tokens_per_chip = tokens / system.n_chips
    return Answer(
        document=lambda: {
            "chip": chip.name,
            "widths": widths,
            "limits": rows,
            "tokens_per_chip": tokens_per_chip,
            "best_split": split,
        },
        blocks=report.blocks(rows, widths, chip.name, split, tokens_per_chip),
        as_json=json,
    )


def _widths(text: str) -> Widths:
    """The widths of a model, or of sizes that are written out."""
    if "=" not in text or text.endswith(".json"):
        return Widths.of(sw.model(text))
    sizes = units.parse_sizes(text.split(","), "size")
    unknown = [name for name in sizes if name not in SIZES]
    if unknown or "F" not in sizes:
        raise BadInput(
            f'sizes "{text}": give F, and E and k of experts, as F=28672 or F=2048,E=256,k=8.'
        )
    return Widths(**{SIZES[name]: size for name, size in sizes.items()})
