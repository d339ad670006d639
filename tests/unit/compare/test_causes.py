"""Broken programs: the first line of `compare` names the cause, and that of a clean twin does not.

Of each kind the program is real, recorded or run here, or its verdict is that of `check`, except
for the vocabulary, where a recorded trace has a slower head.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import grain.python as grain
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shardwise as sw
from shardwise.check.user.fault import Fault
from shardwise.check.user.function import FunctionReport
from shardwise.compare.result import PairComparison, StepComparison
from shardwise.compare.step import rates_are_measured
from shardwise.profile.account import profile_devices, read_devices
from shardwise.profile.result import LiveArrays, MemoryPeak, Profile
from shardwise.report.compare import pair_blocks, step_blocks
from shardwise.report.profile import blocks as profile_blocks
from shardwise.report.style import render
from tests.conftest import ROOT
from tests.unit.check.compilers import needs
from tests.unit.check.user import faulty
from tests.unit.compare.recorded_runs import plan, profile, with_times
from tests.unit.compare.sharded_programs import N_STEPS, PROGRAMS, SUMMED, record

STALL_S = 0.02
N_READS = 60  # of a batch by the slow loader
N_ARRAYS = 20_000


def first_line(comparison: StepComparison) -> str:
    text = render(step_blocks(comparison, []), io.StringIO())
    for label in ("\nplan ", "\ntry "):
        text = text.partition(label)[0]
    return " ".join(text.split())


def test_a_sharding_that_inserts_gathers() -> None:
    broken = sw.compare(plan(data=2), profile())
    assert broken.causes[0].kind == "unplanned collective"
    assert "a collective that is not in the plan at embed" in first_line(broken)
    clean = sw.compare(plan(fsdp=2), profile())
    assert "unplanned collective" not in {cause.kind for cause in clean.causes}


def test_no_remat_where_it_is_planned() -> None:
    broken = sw.compare(plan(fsdp=2, remat="full"), profile())
    assert broken.causes[0].kind == "not recomputed"
    assert "no remat: the plan recomputes" in first_line(broken)


def test_remat_where_none_is_planned() -> None:
    broken = sw.compare(plan(fsdp=2), profile("fsdp_remat"))
    assert broken.causes[0].kind == "recomputed"
    assert "computed again" in first_line(broken)


def test_planned_remat_is_no_cause() -> None:
    clean = sw.compare(plan(fsdp=2, remat="full"), profile("fsdp_remat"))
    assert not {"recomputed", "not recomputed"} & {cause.kind for cause in clean.causes}


def test_a_vocabulary_that_does_not_fill_tiles() -> None:
    slow_head = with_times(profile(), {"unembed": 40.0, "embed": 0.2})
    broken = sw.compare(plan(fsdp=2), slow_head)
    assert broken.causes[0].kind == "vocabulary"
    assert "264, is no multiple of 128: pad it to 384" in first_line(broken)
    clean = sw.compare(plan(vocab=256, fsdp=2), slow_head)
    assert clean.causes[0].kind == "slower"


def test_weights_gathered_in_decode() -> None:
    model = sw.model("llama3-8b")
    work = sw.Serve(context=2048, batch=8)
    machine = sw.hardware("v5e:2x4")
    gathered = sw.plan(model, machine, work, {"weights": "gathered"})
    stationary = sw.plan(model, machine, work, {"weights": "stationary"})
    pair = sw.compare(gathered, stationary)
    assert pair.causes[0].kind == "weights gathered"
    clean = sw.compare(stationary, stationary)
    assert clean.causes == ()


def test_a_batch_too_small_for_its_weights() -> None:
    model = sw.model("llama3-8b")
    machine = sw.hardware("v5e:8x8")
    small = sw.plan(model, machine, sw.Train(batch=64, seq=128), {"fsdp": 64})
    large = sw.plan(model, machine, sw.Train(batch=64, seq=8192), {"fsdp": 64})
    run = replace(profile(), kind="TPU", operations=(), step_s=small.step.expected)
    broken = sw.compare(small, run)
    assert broken.causes[0].kind == "small batch"
    assert "too small a batch: 128;" in first_line(broken)
    clean = sw.compare(large, run)
    assert "small batch" not in {cause.kind for cause in clean.causes}


@jax.jit
def layers(weights: list[jax.Array], x: jax.Array) -> jax.Array:
    for weight in weights:
        with jax.named_scope("mlp.up"):
            x = jnp.tanh(x @ weight)
    return x


def traced(folder: Path, n_rows: int, d_model: int, n_layers: int, stall_s: float) -> Profile:
    """A profile of a few steps, before each of which the host takes some time."""
    weights = [jnp.ones((d_model, d_model)) / d_model] * n_layers
    x = jnp.ones((n_rows, d_model))
    record(folder, lambda: layers(weights, x), stall_s)
    return of_two_devices(folder)


def of_two_devices(folder: Path) -> Profile:
    """A profile of one device as if it were one of two, as the plans here have."""
    return replace(profile_devices(str(folder), read_devices(str(folder))), devices=2)


def test_a_host_that_is_waited_for(tmp_path: Path) -> None:
    broken = sw.compare(plan(fsdp=2), traced(tmp_path / "a", 1024, 256, 2, 10 * STALL_S))
    assert "idle between programs: host-bound" in first_line(broken)
    clean = sw.compare(plan(fsdp=2), profile())
    assert "host-bound" not in {cause.kind for cause in clean.causes}


class Compressed:
    """Batches of numbers that a data source of grain decompresses one after the other."""

    def __init__(self) -> None:
        numbers = np.random.default_rng(0).integers(4, size=(N_STEPS + 1, 1024, 256), dtype=np.int8)
        self.batches = [zlib.compress(batch.tobytes(), 9) for batch in numbers]

    def __len__(self) -> int:
        return len(self.batches)

    def __getitem__(self, index: int) -> np.ndarray[Any, Any]:
        for _ in range(N_READS):
            content = zlib.decompress(self.batches[index])
        return np.frombuffer(content, np.int8).reshape(1024, 256).astype(np.float32)


def loaded(folder: Path, batches: Sequence[Any]) -> Profile:
    """A profile of steps, each of which gets its batch of a dataset."""
    weights = [jnp.ones((256, 256)) / 256] * 2
    number = iter(range(len(batches)))
    record(folder, lambda: layers(weights, jax.device_put(batches[next(number)])))
    return of_two_devices(folder)


def test_traces_in_other_dtypes_differ_in_it(tmp_path: Path) -> None:
    """XLA computes bf16 products in fp32 on CPUs, unless they are those of this package."""
    weights = [jnp.ones((256, 256), jnp.bfloat16)] * 2
    x = jnp.ones((512, 256), jnp.bfloat16)
    record(tmp_path, lambda: layers(weights, x))
    upcast = profile_devices(str(tmp_path), read_devices(str(tmp_path)))
    assert "products in f32" in render(profile_blocks(upcast, ""), io.StringIO())
    pair = sw.compare(upcast, replace(upcast, dtype="bf16"))
    assert isinstance(pair, PairComparison)
    assert [(s.name, s.first, s.second) for s in pair.settings] == [("products", "f32", "bf16")]
    assert sw.compare(upcast, upcast).settings == ()  # type: ignore[union-attr]


def test_loading_is_not_dispatch(tmp_path: Path) -> None:
    """A loader that decompresses, the same batches in memory, and a step of thousands of arrays."""
    dataset = grain.MapDataset.source(Compressed())
    slow = loaded(tmp_path / "loader", dataset)
    broken = sw.compare(plan(fsdp=2), slow)
    assert "host-bound: the device waits for the loading of data" in first_line(broken)
    assert "of it for the loading of data" in render(profile_blocks(slow, ""), io.StringIO())
    ready = loaded(tmp_path / "memory", [jnp.asarray(batch) for batch in dataset])
    clean = sw.compare(plan(fsdp=2), ready)
    assert "loading" not in {cause.name for cause in clean.causes if cause.kind == "host-bound"}


@pytest.mark.oracle
def test_dispatch_is_not_loading(tmp_path: Path) -> None:
    """A step that JAX dispatches with thousands of arrays, and the same numbers as one array."""
    many = [jnp.ones(8)] * N_ARRAYS
    total = jax.jit(lambda arrays: arrays[0].sum() + arrays[-1].sum())
    record(tmp_path / "many", lambda: total(many))
    profiles = profile_devices(str(tmp_path / "many"), read_devices(str(tmp_path / "many")))
    host = {part.name: part.seconds for part in profiles.operations if part.category == "host"}
    assert max(host, key=lambda name: host[name]) == "dispatch"
    assert "loading" not in host
    assert "of it for the dispatch of programs" in render(
        profile_blocks(profiles, ""), io.StringIO()
    )
    large = traced(tmp_path / "large", 2048, 512, 2, 0.0)
    assert "host-bound" not in render(profile_blocks(large, ""), io.StringIO()).splitlines()[0]


def test_operations_as_short_as_their_launches(tmp_path: Path) -> None:
    small = traced(tmp_path / "a", 1, 16, 40, 0.0)
    large = traced(tmp_path / "b", 2048, 512, 2, 0.0)
    assert small.step_s < plan(fsdp=2).step.expected
    broken = sw.compare(plan(fsdp=2), small)
    assert "short operations" in {cause.kind for cause in broken.causes}
    assert "too small a batch" in first_line(broken)
    clean = sw.compare(plan(fsdp=2), large)
    assert "short operations" not in {cause.kind for cause in clean.causes}


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Profile]:
    """Profiles of `sharded_programs` by name."""
    folder = tmp_path_factory.mktemp("sharded")
    words = [sys.executable, "-m", "tests.unit.compare.sharded_programs", str(folder)]
    variables = {**os.environ, "JAX_PLATFORMS": "cpu"}
    subprocess.run(words, cwd=ROOT, env=variables, check=True, timeout=120)
    return {
        name: profile_devices(str(folder / name), read_devices(str(folder / name)))
        for name in (*PROGRAMS, *SUMMED)
    }


def test_a_constraint_that_gathers_an_array(sharded: dict[str, Profile]) -> None:
    """The first line of two traces is the gather, and then the products that it makes larger."""
    pair = sw.compare(sharded["rows"], sharded["whole"])
    assert isinstance(pair, PairComparison)
    assert [cause.kind for cause in pair.causes[:2]] == ["new collective", "more FLOPs"]
    lines = render(pair_blocks(pair, []), io.StringIO())
    assert "a collective that A does not have: mlp.up forward communication" in lines
    assert "mlp.up forward matmul computes 4.0 times the FLOPs in B" in " ".join(lines.split())
    turned = sw.compare(sharded["whole"], sharded["rows"])
    assert isinstance(turned, PairComparison)
    lines = " ".join(render(pair_blocks(turned, []), io.StringIO()).split())
    assert "a collective that B does not have: mlp.up forward communication" in lines
    assert "mlp.up forward matmul computes 4.0 times the FLOPs in A" in lines
    twin = sw.compare(sharded["rows"], sharded["again"])
    assert {cause.kind for cause in twin.causes} <= {"grew"}


def test_a_gather_where_a_scope_communicates_already(sharded: dict[str, Profile]) -> None:
    """Kind and bytes of the collectives tell it from a slower AllReduce of the same name."""
    pair = sw.compare(sharded["summed rows"], sharded["summed whole"])
    assert isinstance(pair, PairComparison)
    assert pair.causes[0].kind == "new collective"
    lines = " ".join(render(pair_blocks(pair, []), io.StringIO()).split())
    assert "mlp.up forward communication (AllGather of 2.10 MB)" in lines
    parts = sharded["summed rows"].operations
    kinds = {kind for part in parts for kind in part.collectives}
    assert kinds == {"all_reduce"}
    # Where steps vary by more than they differ, chance says which trace is the slower one.
    fast = sharded["summed whole"]
    noisy = {"step_s": 1.01 * fast.step_s, "longest_step_s": 2 * fast.step_s}
    pair = sw.compare(replace(sharded["summed rows"], **noisy), fast)
    assert isinstance(pair, PairComparison)
    assert pair.causes[0].kind == "new collective"


def test_a_program_that_needs_more_memory_and_no_more_time() -> None:
    """The memory of a second trace is a cause, and so is that of a trace above its plan."""
    memory = MemoryPeak(
        bytes=900_000_000,
        arguments=100_000_000,
        temporaries=800_000_000,
        instruction="fusion.1",
        operation="mlp.up",
        arrays=(LiveArrays(name="mlp.up", phase="forward", count=4, bytes=600_000_000),),
    )
    small = replace(profile(), memory=replace(memory, bytes=300_000_000))
    large = replace(profile(), memory=memory)
    pair = sw.compare(small, large)
    assert [cause.kind for cause in pair.causes] == ["more memory"]
    lines = " ".join(render(pair_blocks(pair, []), io.StringIO()).split())
    assert "and yet B needs 858 MiB of memory, A 286 MiB; most at mlp.up" in lines
    assert sw.compare(large, small).causes == ()
    causes = {cause.kind: cause for cause in sw.compare(plan(fsdp=2), large).causes}
    assert causes["memory"].measured == 900_000_000
    slow = with_times(large, dict.fromkeys((part.name for part in large.operations), 9.0))
    text = render(step_blocks(sw.compare(plan(fsdp=2), slow), []), io.StringIO())
    assert "memory 858 MiB, planned" in " ".join(text.split())  # beside five that cost seconds
    total = plan(fsdp=2).memory.total
    fits = replace(profile(), memory=replace(memory, bytes=int(1.1 * total)))
    assert "memory" not in {cause.kind for cause in sw.compare(plan(fsdp=2), fits).causes}


def function_report(*faults: Fault) -> FunctionReport:
    return FunctionReport(
        name="step",
        hardware="v5e:4x4",
        compiler="tpu",
        fits=True,
        verdict="compiles",
        note="",
        mesh={"data": 16},
        compiled=None,
        flops_by_scope={},
        collectives=(),
        largest=(),
        compile_s=1.0,
        versions={},
        faults=faults,
    )


def test_a_machine_that_is_slower_than_when_it_was_measured() -> None:
    names = [part.name for part in profile().operations]

    def first(times: dict[str, float], *, rates_measured: bool = True) -> str:
        compared = sw.compare(plan(fsdp=2), with_times(profile(), times))
        assert isinstance(compared, StepComparison)
        return first_line(replace(compared, rates_measured=rates_measured))

    slow = first(dict.fromkeys(names, 3.0))
    assert "of their planned rates: the machine is slower than when" in slow
    assert "Biggest win" not in slow
    assert "slower than when" not in first({})
    assert "slower than when" not in first(dict.fromkeys(names, 3.0), rates_measured=False)
    stalled = dict.fromkeys(names, 3.0) | {"host": 300.0}  # most of the step
    assert "slower than when" not in first(stalled)


def test_rates_are_measured_for_the_work_of_a_plan() -> None:
    peaks_alone = plan(fsdp=2)
    assert not rates_are_measured(peaks_alone)
    figures = peaks_alone.hardware.figures | {"training.fp32_forward": 1e11}
    measured = replace(peaks_alone, hardware=replace(peaks_alone.hardware, figures=figures))
    assert rates_are_measured(measured)
    served = sw.plan(sw.model("llama3-8b"), sw.hardware("h100:8"), sw.Serve(context=1024, batch=8))
    assert not rates_are_measured(served)


def test_remat_that_one_of_two_traces_has() -> None:
    plain = profile()
    names = [part.name for part in plain.operations]
    again = with_times(profile("fsdp_remat"), dict.fromkeys(names, 1.5))

    def headline(first: Profile, second: Profile) -> str:
        pair = sw.compare(first, second)
        assert isinstance(pair, PairComparison)
        assert "more remat" in {cause.kind for cause in pair.causes}
        return " ".join(render(pair_blocks(pair, []), io.StringIO()).split())

    assert "by remat, 21.1 ms and 111 ms" in headline(plain, again)
    assert "by remat, 111 ms and 21.1 ms" in headline(again, plain)
    no_remat = replace(
        plain, operations=tuple(part for part in plain.operations if part.phase != "remat")
    )
    assert "by remat, of which A has none: 111 ms" in headline(no_remat, again)
    assert "by remat, of which B has none: 111 ms" in headline(again, no_remat)


def test_a_gather_with_its_kind_is_said_before_what_grew(sharded: dict[str, Profile]) -> None:
    slow = with_times(sharded["whole"], {"mlp.up": 30.0})
    pair = sw.compare(sharded["rows"], slow)
    assert isinstance(pair, PairComparison)
    headline = " ".join(render(pair_blocks(pair, []), io.StringIO()).split("\n\n")[0].split())
    assert "by a collective that A does not have: mlp.up forward communication" in headline
    assert "; most of it in " in headline


def test_faults_of_check_come_first() -> None:
    fault = Fault(kind="fp32 product", scope="mlp.up", share=0.6, seconds=1e-3)
    broken = sw.compare(function_report(fault), profile())
    assert first_line(broken).startswith("An fp32 product of 16-bit inputs in mlp.up")
    assert sw.compare(function_report(), profile()).causes == ()


def test_a_function_measured_on_other_devices() -> None:
    """Nothing is said to be as planned, for nothing is planned."""
    first = first_line(sw.compare(function_report(), profile()))
    assert "compiled for v5e:4x4 and measured on a CPU" in first
    assert "No part takes longer" not in first
    same = first_line(sw.compare(function_report(), replace(profile(), kind="TPU")))
    assert "measured on a CPU" not in same


@needs("tpu")
@pytest.mark.oracle
@pytest.mark.parametrize(
    ("broken", "clean", "words"),
    [
        (faulty.mlp(fp32=True), faulty.mlp(), "An fp32 product of 16-bit inputs"),
        (faulty.update(donated=False), faulty.update(), "Not donated: 768 MiB"),
        (faulty.logits(whole=True), faulty.logits(), "whole on "),
    ],
)
def test_programs_that_check_compiles(
    broken: faulty.Program, clean: faulty.Program, words: str
) -> None:
    reports = []
    for function, args in (broken, clean):
        reports.append(sw.check(function, *args, on="v5e:4x4"))
    assert words in first_line(sw.compare(reports[0], profile()))
    assert sw.compare(reports[1], profile()).causes == ()
