"""`shardwise profile TRACE`: where the time of a step went, from a trace of jax.profiler."""

from __future__ import annotations

from typing import Annotated

from shardwise.cli import options
from shardwise.cli.answer import Answer
from shardwise.cli.options import argument, output
from shardwise.profile.account import profile_devices, read_devices
from shardwise.profile.perfetto import write_perfetto
from shardwise.report import profile as report
from shardwise.runtime.devices import require_jax


def run(
    trace: Annotated[str, argument("TRACE", "a folder of jax.profiler, or an .xplane.pb")],
    perfetto: Annotated[
        str, output("--perfetto FILE", "the operations of the devices, for Perfetto (.json, .gz)")
    ] = "",
    json: options.Json = False,
) -> Answer:
    """Say where the time of a step went, from a trace of jax.profiler of any JAX program on TPUs,
    GPUs or CPUs: by category, by operation of the model, communication that is hidden and
    exposed, and idle time."""
    require_jax("reading a trace", "pip install 'shardwise[run]'")
    devices = read_devices(trace)
    result = profile_devices(trace, devices)
    if perfetto:
        write_perfetto(perfetto, devices, result)
    return Answer(document=lambda: result, blocks=report.blocks(result, perfetto), as_json=json)
