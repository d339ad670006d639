"""`shardwise shard "In[B_X,D] . W[D_X,F_Y] -> Out[B_X,F_Y]" --mesh X=4,Y=4 --on v5e:4x4 B=1024`."""

from __future__ import annotations

from typing import Annotated

import shardwise as sw
from shardwise.cli import options
from shardwise.cli.answer import Answer
from shardwise.cli.inputs import Inputs, parse_mesh, parse_word
from shardwise.cli.options import argument, workload
from shardwise.ops.notation import parse_einsum
from shardwise.report import shard as report
from shardwise.units import BYTES_PER_ELEMENT, parse_sizes


def run(
    einsum: Annotated[str, argument("EINSUM", '"In[B_X,D] . W[D_X,F_Y] -> Out[B_X,F_Y]"')],
    sizes: Annotated[list[str] | None, argument("DIM=SIZE...", "B=1024 D=8Ki")] = None,
    dtype: Annotated[str, workload("--dtype DTYPE", "dtype of the arrays")] = "bf16",
    grad: Annotated[bool, workload("--grad", "also the two gradients")] = False,
    mesh: options.MeshAxes = "",
    on: options.TargetHardware = "",
    json: options.Json = False,
) -> Answer:
    """A sharded matmul: its collectives with bytes and times, and the alternatives."""
    inputs = Inputs()
    inputs.read(parse_einsum, einsum)
    dim_sizes = inputs.read(parse_sizes, sizes or [])
    mesh_axes = inputs.optional(parse_mesh, mesh) or {}
    if not on:
        inputs.refuse("no machine is given. Add --on HARDWARE, as --on v5e:4x4.")
    system = inputs.optional(sw.hardware, on)
    inputs.read(parse_word, dtype, "dtype", BYTES_PER_ELEMENT)
    inputs.done()
    result = sw.shard(
        einsum, mesh=mesh_axes, on=system or on, sizes=dim_sizes, dtype=dtype, grad=grad
    )
    return Answer(
        document=lambda: report.document(result), blocks=report.blocks(result), as_json=json
    )
