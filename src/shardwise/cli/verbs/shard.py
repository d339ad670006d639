"""`shardwise shard "In[B_X,D] . W[D_X,F_Y] -> Out[B_X,F_Y]" --mesh X=4,Y=4 --on v5e:4x4 B=1024`."""

from __future__ import annotations

from typing import Annotated

import typer

import shardwise as sw
from shardwise.cli.answer import Answer
from shardwise.cli.command import Json
from shardwise.cli.inputs import Inputs, parse_mesh, parse_word
from shardwise.estimate.matmul import parse_sizes
from shardwise.ops.notation import parse_einsum
from shardwise.report import shard as report
from shardwise.units import BYTES_PER_ELEMENT


def run(
    einsum: Annotated[
        str,
        typer.Argument(metavar="EINSUM", help='"In[B_X,D] . W[D_X,F_Y] -> Out[B_X,F_Y]"'),
    ],
    sizes: Annotated[
        list[str] | None, typer.Argument(metavar="DIM=SIZE...", help="B=1024 D=8Ki")
    ] = None,
    mesh: Annotated[
        str, typer.Option(metavar="AXIS=N,...", help="sizes of the mesh axes: X=4,Y=4")
    ] = "",
    on: Annotated[str, typer.Option(metavar="HARDWARE", help="the machine: v5e:4x4")] = "",
    dtype: Annotated[str, typer.Option(metavar="DTYPE", help="of every array")] = "bf16",
    grad: Annotated[bool, typer.Option("--grad", help="also the two gradients")] = False,
    json: Json = False,
) -> Answer:
    """A sharded matmul: its collectives with bytes and times, and the other ways."""
    inputs = Inputs()
    inputs.read(parse_einsum, einsum)
    dims = inputs.read(parse_sizes, sizes or [])
    axes = inputs.read(parse_mesh, mesh) if mesh else {}
    if not on:
        inputs.refuse("no machine is given. Add --on HARDWARE, as --on v5e:4x4.")
    system = inputs.read(sw.hardware, on) if on else None
    inputs.read(parse_word, dtype, "dtype", BYTES_PER_ELEMENT)
    inputs.done()
    result = sw.shard(einsum, mesh=axes, on=system or on, sizes=dims, dtype=dtype, grad=grad)
    return Answer(
        document=lambda: report.document(result), blocks=report.blocks(result), as_json=json
    )
