"""`shardwise profile TRACE | PLAN.json`: where the time of a step went."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from shardwise.cli import options
from shardwise.cli.answer import Answer
from shardwise.cli.inputs import Inputs, load_plan
from shardwise.cli.machines import parse_chip
from shardwise.cli.options import argument, output, workload
from shardwise.cli.progress import ProgressLine
from shardwise.errors import BadInput, ShardwiseError
from shardwise.plan.schema.serving import ServingPlan
from shardwise.profile.account import profile_devices, read_devices, read_profile
from shardwise.profile.perfetto import write_perfetto
from shardwise.report import profile as report
from shardwise.runtime.devices import require_jax

if TYPE_CHECKING:
    from shardwise.hardware import Chip
    from shardwise.plan.schema.json_io import AnyPlan
    from shardwise.profile.devices import Device
    from shardwise.report.style import Block

PLAN_SUFFIX = ".json"
PERFETTO_SUFFIXES = (".json", ".json.gz")


def run(
    subject: Annotated[
        str,
        argument("TRACE|PLAN.json", "a folder of jax.profiler, an .xplane.pb, or a plan to run"),
    ],
    data: options.TokenFolders = "",
    on: options.TargetHardware = "",
    program: Annotated[
        str,
        workload(
            "--program NAME", "whose executions are steps  [default: the one that takes most]"
        ),
    ] = "",
    perfetto: Annotated[
        str, output("--perfetto FILE", "the operations of the devices, for Perfetto (.json, .gz)")
    ] = "",
    json: options.Json = False,
) -> Answer:
    """Say where the time of a step went, by category and by operation of the model: communication
    that is hidden and exposed, idle time. TRACE: of jax.profiler, of any JAX program on TPUs, GPUs
    or CPUs. PLAN.json: some steps are run on the devices of this host, with random weights and,
    without --data, random tokens; the trace is kept in PLAN.profile."""
    inputs = Inputs()
    chip = inputs.optional(parse_chip, on)
    plan = None
    if subject.endswith(PLAN_SUFFIX):
        plan = inputs.read(load_plan, subject)
        if data and isinstance(plan, ServingPlan):
            inputs.refuse("--data is for training; an engine is given random prompts.")
    elif data:
        inputs.refuse("--data is for a plan that is run: profile PLAN.json.")
    if perfetto and not perfetto.endswith(PERFETTO_SUFFIXES):
        inputs.refuse(f"--perfetto {perfetto}: Perfetto opens .json and .json.gz files.")
    inputs.done()
    require_jax("profiling", "pip install 'shardwise[run]'")
    trace = subject
    if plan is not None:
        trace = str(Path(subject).with_suffix(".profile"))
        _record(plan, trace, data, quiet=json)
    devices = read_devices(trace)
    if chip is not None:
        _require_kind(on, chip, trace, devices)
    result = profile_devices(trace, devices, program=program, chip=chip)
    if perfetto:
        write_perfetto(perfetto, devices, result)
    return Answer(
        document=lambda: report.document(result),
        blocks=report.blocks(result, perfetto),
        as_json=json,
    )


def _require_kind(on: str, chip: Chip, trace: str, devices: Sequence[Device]) -> None:
    """Refuse the roofs of another kind of device."""
    kind = devices[0].kind
    if chip.kind != kind.lower():
        measure = " shardwise hw measure N -o host.toml makes one of this CPU." * (kind == "CPU")
        raise BadInput(
            f"--on {on}: {trace} is of {kind}s, and {chip.name} is not one. Name the chip that "
            f"ran it.{measure}"
        )


def _record(plan: AnyPlan, folder: str, data: str, *, quiet: bool) -> None:
    """Run and record steps of a plan, and show what is done."""
    from shardwise.profile.of_plan import record_plan

    line = ProgressLine(quiet=quiet)
    try:
        record_plan(plan, folder, data=data, on_stage=lambda stage: line.show(f"{stage} ..."))
    finally:
        line.clear()


def short_account(folder: str) -> Iterator[Block]:
    """The first line of the account of a trace, or why there is none."""
    try:
        yield from report.short(read_profile(folder))
    except ShardwiseError as error:
        yield str(error)
