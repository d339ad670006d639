"""`shardwise collective all_gather 34MB --on v5e:4x4 --axis X`."""

from __future__ import annotations

from typing import Annotated

import shardwise as sw
from shardwise import units
from shardwise.cli import options
from shardwise.cli.answer import Answer
from shardwise.cli.inputs import Inputs, parse_mesh, parse_word
from shardwise.cli.options import argument, strategy
from shardwise.formulas.collective_time import collective_time
from shardwise.ops.collective import KINDS
from shardwise.report import collective as report


def run(
    kind: Annotated[str, argument("KIND", ", ".join(KINDS))],
    size: Annotated[str, argument("SIZE", "bytes of the whole array: 34MB; of a permute, sent")],
    on: options.TargetHardware = "",
    axis: Annotated[str, strategy("--axis X[,Y]", "the axes it runs over  [default: all]")] = "",
    mesh: options.MeshAxes = "",
    json: options.Json = False,
) -> Answer:
    """The time of one collective: its latency, and the bytes on each level of links. Axes are X, Y
    and Z of a torus, or X inside a node and Y across nodes, unless --mesh names others."""
    inputs = Inputs()
    inputs.read(parse_word, kind, "collective", KINDS)
    n_bytes = inputs.read(units.parse_bytes, size)
    sizes = inputs.optional(parse_mesh, mesh)
    if not on:
        inputs.refuse("no machine is given. Add --on HARDWARE, as --on v5e:4x4.")
    system = inputs.optional(sw.hardware, on)
    inputs.done()
    axes = [name.strip() for name in axis.split(",")] if axis else []
    result = collective_time(kind, n_bytes, system or sw.hardware(on), axes, sizes)
    return Answer(
        document=lambda: report.document(result), blocks=report.blocks(result), as_json=json
    )
