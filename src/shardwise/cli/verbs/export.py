"""`shardwise export PLAN.json --to maxtext`: a plan as the launch configuration of a framework."""

from __future__ import annotations

from typing import Annotated

from shardwise.cli import options
from shardwise.cli.answer import Answer
from shardwise.cli.failure import note
from shardwise.cli.inputs import Inputs, load_plan, parse_output_file
from shardwise.cli.options import argument, output
from shardwise.errors import BadInput, file_error
from shardwise.frameworks import registry
from shardwise.plan.schema.training import Plan
from shardwise.vocabulary import FRAMEWORK_ALIASES, FRAMEWORKS


def run(
    plan: Annotated[str, argument("PLAN.json", "a saved plan")],
    to: Annotated[str, output("--to NAME", f"the framework: {', '.join(registry.names())}")] = "",
    part: Annotated[
        str,
        output("--part WORD", "engines of a disaggregated plan: prefill or decode"),
    ] = "",
    file: options.OutputFile = "",
    json: options.Json = False,
) -> Answer:
    """A plan as the launch configuration of a training framework, a serving engine or a cluster.
    What the file cannot say is a comment in it, and a note here. shardwise import reads such files
    back."""
    inputs = Inputs()
    if not to:
        inputs.refuse(f"no framework is named. Add --to NAME, of {', '.join(registry.names())}.")
    else:
        inputs.read(registry.find, to)
    if part not in ("", "prefill", "decode"):
        inputs.refuse(f'--part "{part}" is neither prefill nor decode.')
    loaded = inputs.read(load_plan, plan)
    inputs.optional(parse_output_file, file)
    inputs.done()
    export = registry.export(loaded, to, part or None)
    for text in export.notes:
        note(f"not in the file: {text}")
    if isinstance(loaded, Plan):
        from shardwise.frameworks import replan

        problem = replan.memory_problem(loaded, export.text, to)
        if problem:
            note(f"as {registry.find(to).title} runs it: {problem} {_nearest(to, loaded)}".rstrip())
    if not file:
        return Answer(document=lambda: export, blocks=(), raw=export.text, as_json=json)
    _save(export.text, file)
    lines = [f"{file} is for {registry.find(to).title} ({export.as_of})."]
    if export.command:
        lines.append(f"use     {export.command.replace('FILE', file)}")
    lines.append(f"back    shardwise import {file} --from {to} -o plan.json")
    return Answer(document=lambda: export, blocks=lines, as_json=json)


def _nearest(framework: str, plan: Plan) -> str:
    """How to plan what fits under a framework that can be planned for."""
    name = FRAMEWORK_ALIASES.get(framework, framework)
    if name not in FRAMEWORKS or plan.workload.framework == name:
        return ""
    return f"Nearest: plan again with --framework {name}."


def _save(text: str, file: str) -> None:
    try:
        with open(file, "w", encoding="utf-8") as stream:
            stream.write(text)
    except OSError as error:
        raise file_error(file, error, "Nothing was saved.") from None
    except UnicodeError as error:
        raise BadInput(f"{file}: {error}.") from None
