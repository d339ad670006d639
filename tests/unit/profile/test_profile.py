"""`shardwise profile`: a trace that JAX records here, and traces in the form of TPUs and GPUs."""

from __future__ import annotations

import gzip
import json
import math
import os
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import msgspec
import pytest
from jax.profiler import ProfileData, ProfileOptions

from shardwise.hardware import parse_chip
from shardwise.profile.account import profile_devices, read_devices
from shardwise.profile.categories import COMMUNICATION, COPY, MATMUL, WAIT
from shardwise.profile.memory import at_peak
from shardwise.profile.names import SAVED
from shardwise.profile.neighbours import neighbours
from shardwise.profile.result import MemoryPeak, OperationTime, Profile
from shardwise.report.profile_hints import hints
from tests.golden.terminal import run
from tests.unit.compare.recorded_runs import FOLDER as RECORDED

STEPS = 4  # recorded; the last has no following step


@jax.jit
def two_layers(weights: list[jax.Array], x: jax.Array) -> jax.Array:
    for weight in weights:
        with jax.named_scope("mlp.up"):
            x = jax.nn.gelu(x @ weight)
    with jax.named_scope("pooling"):
        return jnp.mean(x**2, axis=0)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trace")
    weights = [jnp.ones((256, 256)) / 256] * 2
    x = jnp.ones((512, 256))
    two_layers(weights, x).block_until_ready()
    options = ProfileOptions()
    options.python_tracer_level = 0
    with jax.profiler.trace(str(folder), profiler_options=options):
        for _ in range(STEPS):
            two_layers(weights, x).block_until_ready()
    return folder


def account(path: Path) -> Profile:
    return profile_devices(str(path), read_devices(str(path)))


def assert_sums(profile: Profile) -> None:
    for parts in (profile.categories, profile.operations):
        assert math.fsum(part.seconds for part in parts) == pytest.approx(profile.step_s)
        assert math.fsum(part.share for part in parts) == pytest.approx(1)
    together = profile.exposed_s + profile.hidden_s
    assert together == pytest.approx(profile.communication_s)


def test_a_trace_of_this_cpu(trace: Path) -> None:
    profile = account(trace)
    assert_sums(profile)
    assert (profile.kind, profile.devices) == ("CPU", 1)
    assert profile.steps + len(profile.slow_steps) == STEPS - 1
    assert profile.module == "jit_two_layers"
    assert profile.has_programs
    by_name = {(part.name, part.category): part for part in profile.operations}
    assert by_name["mlp.up", "matmul"].count >= 1  # both layers, where XLA makes one fusion
    assert "pooling" in {part.name for part in profile.operations}
    rounding = 1e-9
    assert 0 < profile.named_share <= profile.operations_share + rounding <= 1 + 2 * rounding


def test_the_screen_and_the_numbers(trace: Path, tmp_path: Path) -> None:
    written = tmp_path / "trace.json.gz"
    said = run("profile", str(trace), "--perfetto", str(written))
    assert said.code == 0, said.err
    first, *rest = said.out.splitlines()
    assert first.startswith("step ")
    assert " matmuls " in " ".join([first, *rest])
    assert max(map(len, [first, *rest])) <= 80
    document = json.loads(run("profile", str(trace), "--json").out)
    assert set(document) == {"headline", *Profile.__dataclass_fields__}
    assert " ".join([first, *rest]).startswith(document["headline"])
    assert set(document["operations"][0]) == {
        "name", "phase", "category", "count", "seconds", "share",
        "flops", "hbm_bytes", "roof_s", "roof", "upcast_flops", "odd_dim", "collectives",
    }  # fmt: skip
    bars = json.loads(gzip.decompress(written.read_bytes()))["traceEvents"]
    assert sum(bar["name"] == "mlp.up" for bar in bars) >= STEPS


def test_the_newest_session_of_a_folder_is_read(trace: Path, tmp_path: Path) -> None:
    (session,) = (trace / "plugins" / "profile").iterdir()
    (file,) = session.glob("*.xplane.pb")
    assert account(file).module == "jit_two_layers"
    shutil.copytree(trace, tmp_path / "run")
    older = tmp_path / "run" / "plugins" / "profile" / "2000"
    older.mkdir()
    (older / "host.xplane.pb").write_bytes(b"older")
    os.utime(older, (0, 0))
    assert account(tmp_path / "run").module == "jit_two_layers"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"no trace \xff\xff", "is no trace of jax.profiler"),
        (ProfileData.text_proto_to_serialized_xspace('planes { name: "/host:CPU" }'), "no device"),
    ],
)
def test_a_file_without_a_step_is_refused(content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "host.xplane.pb").write_bytes(content)
    said = run("profile", str(tmp_path / "host.xplane.pb"))
    assert said.code == 2
    assert words in " ".join(said.err.split())


def test_a_folder_without_a_trace_is_refused(tmp_path: Path) -> None:
    said = run("profile", str(tmp_path))
    assert said.code == 2
    assert "it is empty" in " ".join(said.err.split())
    said = run("profile", str(tmp_path / "none"))
    assert said.code == 2
    assert "there is no file or folder" in " ".join(said.err.split())


def test_a_trace_that_was_cut_short_is_refused(trace: Path, tmp_path: Path) -> None:
    (file,) = trace.rglob("*.xplane.pb")
    cut = tmp_path / "cut.xplane.pb"
    cut.write_bytes(file.read_bytes()[:-100])
    assert run("profile", str(cut)).code == 2


def xspace(plane: str, lines: dict[str, list[tuple[str, int, int]]]) -> bytes:
    """A trace of one plane whose lines have events (name, start, duration) in microseconds."""
    names = sorted({name for events in lines.values() for name, _, _ in events})
    text = [f'planes {{ name: "{plane}"']
    for number, (line, events) in enumerate(lines.items(), 1):
        text.append(f'lines {{ id: {number} name: "{line}"')
        for name, start, duration in events:
            text.append(
                f"events {{ metadata_id: {names.index(name) + 1} offset_ps: {start * 10**6} "
                f'duration_ps: {duration * 10**6} stats {{ metadata_id: 1 str_value: "jit_step" }}'
                f' stats {{ metadata_id: 2 str_value: "{name.split(" = ")[0].strip("%")}" }} }}'
            )
        text.append("}")
    for number, name in enumerate(names, 1):
        text.append(f'event_metadata {{ key: {number} value {{ id: {number} name: "{name}" }} }}')
    for number, name in enumerate(("hlo_module", "hlo_op"), 1):
        text.append(f'stat_metadata {{ key: {number} value {{ id: {number} name: "{name}" }} }}')
    return bytes(ProfileData.text_proto_to_serialized_xspace("\n".join([*text, "}"])))


def test_a_tpu_hides_a_gather_and_waits_for_the_rest(tmp_path: Path) -> None:
    reduction = "%all-reduce.2 = f32[8] all-reduce(%dot.1)"
    operations = [("%dot.1 = f32[8] dot(%a, %all-gather.4)", 0, 60), (reduction, 60, 10)]
    lines = {
        "XLA Modules": [("jit_step(7)", 0, 80), ("jit_step(7)", 100, 80)],
        "XLA Ops": [*operations, *[(name, 100 + at, long) for name, at, long in operations]],
        "Async XLA Ops": [("%all-gather-start.4 = f32[8] all-gather-start(%b)", 20, 30)],
    }
    file = tmp_path / "tpu.xplane.pb"
    file.write_bytes(xspace("/device:TPU:0", lines))
    profile = account(file)
    assert_sums(profile)
    seconds = {part.category: part.seconds for part in profile.categories if part.seconds}
    assert seconds == pytest.approx(
        {"matmul": 60e-6, "communication": 10e-6, "gap": 10e-6, "host": 20e-6}
    )
    assert (profile.kind, profile.steps, profile.has_programs) == ("TPU", 1, False)
    assert profile.hidden_s == pytest.approx(30e-6)
    assert "names of the compiler" in " ".join(run("profile", str(file)).out.split())


def test_a_gpu_has_a_stream_for_communication(tmp_path: Path) -> None:
    lines = {
        "Stream #13(Compute)": [("gemm_128", 0, 40), ("gemm_128", 100, 40)],
        "Stream #14(Collective)": [("ncclDevKernel_AllGather", 30, 30)],
    }
    file = tmp_path / "gpu.xplane.pb"
    file.write_bytes(xspace("/device:GPU:0", lines))
    devices = read_devices(str(file))
    assert {event.category for event in devices[0].events} == {"matmul", "communication"}
    profile = account(file)
    assert_sums(profile)
    assert profile.kind == "GPU"


def test_work_of_an_operation_and_the_roof_that_binds(trace: Path) -> None:
    chip = parse_chip("v5e")
    profile = profile_devices(str(trace), read_devices(str(trace)), chip=chip)
    parts = [part for part in profile.operations if part.name == "mlp.up" and part.flops]
    flops = 2 * 2 * 512 * 256 * 256  # of both layers
    assert sum(part.flops or 0 for part in parts) == pytest.approx(flops)
    for part in parts:
        assert part.hbm_bytes
        assert part.roof_s
        compute_s = (part.flops or 0) / chip.peak("bf16")
        hbm_s = part.hbm_bytes / chip.need("hbm.bandwidth")
        assert part.roof_s == pytest.approx(max(compute_s, hbm_s))
        assert part.roof == ("compute" if compute_s >= hbm_s else "HBM")
    said = run("profile", str(trace), "--on", str(RECORDED / "host.toml")).out
    assert "of roof" in said
    assert max(map(len, said.splitlines())) <= 80


def test_the_roofs_of_another_kind_of_device_are_refused(trace: Path) -> None:
    said = run("profile", str(trace), "--on", "v5e")
    assert said.code == 2
    assert f"--on v5e: {trace} is of CPUs, and v5e is not one." in " ".join(said.err.split())


def test_the_peak_of_memory_is_the_compilers(trace: Path) -> None:
    memory = account(trace).memory
    assert memory is not None
    weights, x = 2 * 256 * 256 * 4, 512 * 256 * 4
    assert memory.arguments == weights + x
    result = 256 * 4  # no temporary array: both layers are one fusion
    assert memory.results == result
    assert memory.temporaries == 0
    assert memory.bytes == weights + x + result


def test_arrays_that_share_memory_count_once_at_the_peak() -> None:
    allocate, free, share = 0, 1, 2

    def event(kind: int, buffer: int, canonical: int = 0) -> SimpleNamespace:
        name = f"fusion.{buffer}"
        return SimpleNamespace(
            kind=kind, buffer_id=buffer, instruction_name=name, share_with_canonical_id=canonical
        )

    events = [
        event(allocate, 1),
        event(allocate, 2),
        event(share, 3, 2),
        event(free, 2),  # its memory is that of 3
        event(free, 1),
        event(allocate, 4),
        event(free, 3),
        event(allocate, 5),
    ]
    live, instruction = at_peak(events, {1: 10, 2: 20, 3: 20, 4: 15, 5: 5})
    assert live == {2: "fusion.2", 4: "fusion.4"}
    assert instruction == "fusion.4"


def test_another_program_between_two_steps_is_no_step(tmp_path: Path) -> None:
    steps = [("jit_step(7)", at, 80) for at in (0, 100, 200, 500)]
    lines = {
        "XLA Modules": [*steps, ("jit_evaluate(8)", 300, 180)],
        "XLA Ops": [("%dot.1 = f32[8] dot(%a)", at, 60) for at in (0, 100, 200, 300, 500)],
    }
    file = tmp_path / "tpu.xplane.pb"
    file.write_bytes(xspace("/device:TPU:0", lines))
    profile = account(file)
    assert_sums(profile)
    assert (profile.steps, profile.step_s) == (2, pytest.approx(100e-6))
    said = run("profile", str(file), "--program", "jit_other")
    assert said.code == 2
    assert "jit_evaluate(8), jit_step(7)" in " ".join(said.err.split())


def test_a_host_that_holds_the_device_is_the_first_thing_said(tmp_path: Path) -> None:
    lines = {
        "XLA Modules": [("jit_step(7)", 0, 60), ("jit_step(7)", 100, 60)],
        "XLA Ops": [("%dot.1 = f32[8] dot(%a)", 0, 60), ("%dot.1 = f32[8] dot(%a)", 100, 60)],
    }
    file = tmp_path / "tpu.xplane.pb"
    file.write_bytes(xspace("/device:TPU:0", lines))
    said = " ".join(run("profile", str(file)).out.split())
    assert said.startswith("step 100 us: host-bound: devices wait 40 % of it for the host")


def test_what_jax_has_not_traced_belongs_to_its_producer_or_its_consumer() -> None:
    def instruction(number: int, opcode: str, *operands: int) -> SimpleNamespace:
        return SimpleNamespace(id=number, opcode=opcode, operand_ids=operands)

    names = {
        1: "x",
        2: "",
        3: "jit(f)/mlp.up/dot",
        4: "",
        5: "jit(f)/jvp()/mul",
        6: "",
        7: "",
        8: "",
    }
    instructions = [
        instruction(1, "parameter"),
        instruction(2, "copy", 1),  # of a weight
        instruction(3, "dot", 2),
        instruction(4, "copy", 3),
        instruction(5, "multiply", 4),  # has a name of its own, outside scopes
        instruction(6, "copy", 5),
        instruction(7, "while", 6),
        instruction(8, "copy", 7),  # does not belong to what stands before the loop
    ]
    assert neighbours(instructions, names) == {1: 3, 2: 3, 4: 3, 6: 5}


def test_large_operations_have_a_hint() -> None:
    """A gather, devices that wait for each other, and copies; no product."""
    profile = msgspec.json.decode((RECORDED / "fsdp.profile.json").read_bytes(), type=Profile)
    part = OperationTime(
        name="mlp.up", phase="forward", category=MATMUL, count=1.0, seconds=0.08, share=0.2
    )
    gather = replace(part, category=COMMUNICATION, collectives={"all_gather": 1e6})
    parts = (part, gather, replace(part, category=WAIT), replace(part, category=COPY))
    first, second, third = hints(replace(profile, operations=parts))
    assert first.startswith("mlp.up: 80.0 ms of AllGather, gathered because")
    assert second == "mlp.up: 80.0 ms of waiting for each other: devices of one CPU share its cores"
    assert "dtype or layout" in third
    saved = replace(part, category=COPY, name=SAVED)
    assert "the backward pass reads" in next(hints(replace(profile, operations=(saved,))))
    short = replace(gather, share=0.07), replace(part, category=WAIT, share=0.05)
    assert "AllGather" in next(hints(replace(profile, operations=short)))
    assert "AllGather" in next(hints(replace(profile, operations=(replace(gather, share=0.056),))))
    memory = MemoryPeak(
        bytes=9, arguments=5, temporaries=4, instruction="", operation="", arrays=()
    )
    undonated = replace(profile, undonated_bytes=5, memory=memory, operations=())
    assert "Donate those that are not used again" in next(hints(undonated))
    reduce = replace(part, category=COMMUNICATION, seconds=0.1, collectives={"all_reduce": 1e6})
    first, second, third = hints(replace(undonated, operations=(reduce, gather), plan=""))
    assert "AllGather" in first
    assert second == "mlp.up: 100 ms of AllReduce"  # without a plan to put it beside
    assert "Donate" in third
    waits = (replace(reduce, seconds=0.01), replace(part, category=WAIT, seconds=0, share=0.09))
    assert "of waiting in its AllReduce" in next(hints(replace(profile, operations=waits)))
    assert [*hints(replace(profile, operations=(replace(part, share=0.05),)))] == []
