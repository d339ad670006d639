"""`shardwise hlo FILE | PLAN.json [OPERATION]`: an operation of a compiled program, explained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import shardwise as sw
from shardwise.cli import options
from shardwise.cli.answer import Answer
from shardwise.cli.inputs import Inputs, load_plan, parse_mesh
from shardwise.cli.machines import parse_chip
from shardwise.cli.options import argument
from shardwise.cli.progress import ProgressLine

if TYPE_CHECKING:
    from shardwise.check.explained.program import Program
    from shardwise.plan.schema.json_io import AnyPlan

DECODE = "decode"
PREFILL = "prefill"


def run(
    subject: Annotated[str, argument("FILE | PLAN.json", "text of a compiled program, or a plan")],
    operation: Annotated[
        str,
        argument("[OPERATION]", "a name or its beginning: fusion.3; prefill/fusion.3 of a plan"),
    ] = "",
    mesh: options.MeshAxes = "",
    on: options.TargetHardware = "",
    json: options.Json = False,
) -> Answer:
    """An operation of a compiled program in words: shapes, layouts and padding, what it computes,
    the mesh axes of its replica groups, its part of the model, its lower bound on a chip. FILE is
    the text of compiled.as_text(), of XLA_FLAGS=--xla_dump_to, or lines of it; of a plan, it is the
    program that check compiles. Without OPERATION: the largest operations."""
    from shardwise.check.explained.operation import Explanation
    from shardwise.check.explained.search import find
    from shardwise.report.hlo import listing
    from shardwise.report.hlo import operation as report

    inputs = Inputs()
    mesh_axes = inputs.optional(parse_mesh, mesh) or {}
    chip = inputs.optional(parse_chip, on)
    if subject.endswith(".json"):
        if mesh or on:
            inputs.refuse("--mesh and --on are for a file: a plan has its mesh and its machine.")
        plan = inputs.read(load_plan, subject)
        inputs.done()
        step, word = _step(plan, operation)
        answer = find(_of_plan(plan, step, quiet=json), word)
    else:
        from shardwise.check.explained.program import read_program
        from shardwise.check.explained.text import malformed

        program = inputs.read(read_program, subject, mesh_axes, chip)
        inputs.done()
        with malformed(subject):
            answer = find(program, operation)
    if isinstance(answer, Explanation):
        blocks = report.blocks(answer)
    else:
        blocks = listing.blocks(answer)
    return Answer(document=lambda: answer, blocks=blocks, as_json=json)


def _step(plan: AnyPlan, operation: str) -> tuple[str, str]:
    """The step of a plan in which to look, and the operation without it: `prefill/fusion.3`."""
    if not isinstance(plan, sw.ServingPlan):
        return "train", operation
    for step in (DECODE, PREFILL):
        if operation.startswith(f"{step}/"):
            return step, operation.removeprefix(f"{step}/")
    return DECODE, operation


def _of_plan(plan: AnyPlan, step: str, *, quiet: bool) -> Program:
    """Compile a step of a plan, and show the stages of the compilation."""
    from shardwise.check.explained.of_plan import program_of_plan
    from shardwise.check.options import CompileOptions

    line = ProgressLine(quiet=quiet)

    def show(stage: str, seconds: float) -> None:
        line.show(f"{stage}, {seconds:.0f} s (a minute or two is normal)")

    try:
        return program_of_plan(plan, step, CompileOptions(on_stage=show))
    finally:
        line.clear()
