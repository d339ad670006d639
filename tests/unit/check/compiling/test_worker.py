"""A program through the compiler in a process of its own: what comes back, what it says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shardwise.check.compiling.job import STAGES, Job
from shardwise.check.compiling.process import Limits, compile_job
from shardwise.check.compiling.result import (
    BadOption,
    Compiled,
    Killed,
    MemoryLimit,
    OtherFailure,
    OutOfMemory,
    Place,
    ShardingError,
    Timeout,
    VmemOverflow,
    encode,
)
from shardwise.check.compiling.targets import target_of
from shardwise.check.notes import compile_error, vmem_note
from shardwise.errors import BadInput, NotDivisible
from shardwise.hardware import parse_system
from tests.unit.check.compilers import needs

PROGRAMS = "tests.unit.check.programs"


@pytest.fixture(scope="module", autouse=True)
def _fast_compiles() -> Iterator[None]:
    """What a process reports does not depend on how well it optimizes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JAX_OPTIMIZATION_LEVEL", "O0")
        yield


def job(builder: str, on: str, **more: Any) -> Job:
    return Job(builder=f"{PROGRAMS}:{builder}", target=target_of(parse_system(on)), **more)


def matmul(on: str) -> Compiled:
    made = compile_job(job("matmul", on, arguments={"m": 64 * 64}))
    assert isinstance(made, Compiled)
    return made


@needs("cpu")
def test_a_program_on_virtual_devices() -> None:
    stages: list[str] = []
    made = compile_job(job("matmul", "cpu:4"), on_stage=lambda stage, _: stages.append(stage))
    assert isinstance(made, Compiled)
    assert made.mesh == {"data": 4}
    assert made.fits is None
    # bf16 In[256 / 4, 256] and W[256, 256].
    assert made.memory.arguments == 2 * (64 * 256 + 256 * 256)
    # The matmul of one device, its sum and its conversion: 2 M K N and M N each.
    assert made.cost["flops"] >= 2 * 64 * 256 * 256
    assert "all-reduce" in made.hlo
    assert "mlp.up" in made.hlo
    assert stages[0] == STAGES[0]
    assert [STAGES.index(stage) for stage in stages] == sorted(map(STAGES.index, stages))


# One of each: two devices a chip, megacore, a slice below one host, 3 axes, several slices, wraps.
@pytest.mark.parametrize(
    ("on", "n_devices", "last"),
    [
        pytest.param("v2:2x2", 8, Place(coords=(1, 1, 0), core=1), marks=pytest.mark.oracle),
        pytest.param("v3:1x1", 2, Place(coords=(0, 0, 0), core=1), marks=pytest.mark.oracle),
        pytest.param("v4:2x2x1", 4, Place(coords=(1, 1, 0)), marks=pytest.mark.oracle),
        ("v5e:4x4*2", 32, Place(coords=(3, 3, 0), slice_index=1)),
        pytest.param("v5e:1x1", 1, Place(coords=(0, 0, 0)), marks=pytest.mark.oracle),
        pytest.param("v5p:2x1x2", 4, Place(coords=(1, 0, 1)), marks=pytest.mark.oracle),
        pytest.param("v5p:4x4x4", 64, Place(coords=(3, 3, 3)), marks=pytest.mark.oracle),
        pytest.param("v6e:2x4", 8, Place(coords=(1, 3, 0)), marks=pytest.mark.oracle),
        ("7x:2x2x1", 8, Place(coords=(1, 1, 0), core=1)),
    ],
)
@needs("tpu")
def test_every_generation_of_tpu(on: str, n_devices: int, last: Place) -> None:
    made = matmul(on)
    assert made.mesh == {"data": n_devices}
    assert len(set(made.places)) == n_devices
    assert made.places[-1] == last
    assert made.memory.arguments == 2 * (4096 // n_devices * 256 + 256 * 256)
    assert made.fits is True
    assert "libtpu" in made.versions


@pytest.mark.parametrize(
    ("on", "last"),
    [
        ("h100:16", Place(coords=(1, 0, 7))),
        ("gb200:8", Place(coords=(0, 1, 3))),
        ("t4:1", Place(coords=(0, 0, 0))),
    ],
)
@needs("gpu")
def test_gpus(on: str, last: Place) -> None:
    made = matmul(on)
    assert made.places[-1] == last
    assert made.fits is True
    assert made.cost == {}


@needs("gpu")
def test_a_gpu_that_is_too_small_is_found_by_its_peak() -> None:
    failure = compile_job(job("scan", "h100:1,hbm=1GiB", arguments={"layers": 16}))
    assert isinstance(failure, OutOfMemory)
    assert failure.program is not None
    assert failure.required == failure.program.memory.peak
    assert failure.available == 2**30


@needs("tpu")
def test_out_of_memory_comes_with_the_program_that_needs_it() -> None:
    # 256 weights of 32 MiB, as many gradients, 256 inputs of 4 MiB: 17 GiB at the least.
    failure = compile_job(job("scan", "v5e:1x1", arguments={"layers": 256}))
    assert isinstance(failure, OutOfMemory)
    assert failure.available == round(15.75 * 2**30)
    assert failure.required is not None
    assert failure.required > 17 * 2**30
    assert failure.program is not None
    assert failure.program.fits is False
    # The compiler prints hundredths of a GiB.
    assert failure.program.memory.peak == pytest.approx(failure.required, abs=0.005 * 2**30)
    assert "mlp.up" in failure.program.hlo


@needs("tpu")
def test_a_search_asks_for_no_explanation() -> None:
    failure = compile_job(job("scan", "v5e:1x1", arguments={"layers": 256}, explain=False))
    assert isinstance(failure, OutOfMemory)
    assert failure.program is None


@needs("tpu")
@pytest.mark.parametrize(("memory", "fits"), [("40GiB", True), ("1GiB", False)])
def test_the_users_own_memory_counts(memory: str, fits: bool) -> None:
    # About 17 GiB, and about 1.06: weights, gradients and inputs of the layers.
    layers = 256 if fits else 16
    made = compile_job(job("scan", f"v5e:1x1,hbm={memory}", arguments={"layers": layers}))
    if fits:
        assert isinstance(made, Compiled)
        assert made.fits is True
    else:
        assert isinstance(made, OutOfMemory)
        assert made.available == 2**30


@needs("tpu")
def test_vmem_overflow_names_the_kernel() -> None:
    failure = compile_job(job("overflow", "v5e:1x1"))
    assert isinstance(failure, VmemOverflow)
    # Argument, scratch and result are 32 MiB each; a kernel gets 16 unless told otherwise.
    assert failure.limit == 16 * 2**20
    assert failure.required >= 32 * 2**20
    assert "mlp.up" in failure.op_name
    words = vmem_note(failure)
    assert words.startswith("a Pallas kernel in mlp.up needs ")
    assert " of VMEM, and may have 16.0 MiB. Take smaller blocks" in words


@needs("cpu")
def test_a_program_that_exits_is_told_as_such() -> None:
    failure = compile_job(job("exiting", "cpu:1"))
    assert isinstance(failure, OtherFailure)
    assert failure.text == "it calls sys.exit('not on this machine')"
    assert failure.source is not None
    assert failure.source.file.endswith("programs.py")


@needs("tpu")
@pytest.mark.parametrize(
    "options", [{"xla_tpu_nonsense": "1"}, {"xla_tpu_scoped_vmem_limit_kib": "many"}]
)
def test_a_bad_option_is_named(options: dict[str, str]) -> None:
    failure = compile_job(job("matmul", "v5e:1x1", options=options))
    assert isinstance(failure, BadOption)
    assert [failure.option] == list(options)


@needs("cpu")
def test_a_sharding_that_cannot_be() -> None:
    failure = compile_job(job("indivisible", "cpu:4"))
    assert isinstance(failure, ShardingError)
    assert "dimension size is 3" in failure.text


@needs("cpu")
def test_the_projects_own_refusals_come_through() -> None:
    with pytest.raises(NotDivisible) as caught:
        compile_job(job("refused", "cpu:4"))
    assert caught.value.problems == ("6 heads over 4 devices.", "Nearest: 3, 6.")


@needs("cpu")
def test_a_builder_that_is_not_there() -> None:
    with pytest.raises(BadInput, match='has no "nobody"'):
        compile_job(job("nobody", "cpu:1"))


@needs("cpu")
def test_other_errors_keep_their_words() -> None:
    failure = compile_job(job("broken", "cpu:1"))
    assert isinstance(failure, OtherFailure)
    assert (failure.stage, failure.text) == ("building", "RuntimeError: no such thing")
    assert failure.source is not None
    line = Path(failure.source.file).read_text().splitlines()[failure.source.line - 1]
    assert 'raise RuntimeError("no such thing")' in line


@needs("cpu")
def test_a_crash_tells_the_last_words() -> None:
    failure = compile_job(job("crashing", "cpu:1"))
    assert isinstance(failure, OtherFailure)
    assert failure.stage == "building"
    assert "code 7" in failure.text
    assert "about to crash" in failure.text


@needs("cpu")
def test_a_process_that_the_system_killed_is_told_as_such() -> None:
    failure = compile_job(job("killed", "cpu:1"))
    assert failure == Killed(stage="building")
    assert "as it does when memory runs out" in str(compile_error(failure))


# It says that the program does not fit, then sleeps in place of compiling it again.
SPEECHLESS = """#!{python} -S
import os, sys, time
os.write(int(sys.argv[5]), b"compiling\\n" + {document!r} + b"\\nexplaining\\n")
time.sleep(60)
"""


def test_a_limit_while_it_explains_leaves_what_it_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = OutOfMemory(required=20, available=10, text="too small")
    worker = tmp_path / "worker"
    worker.write_text(SPEECHLESS.format(python=sys.executable, document=encode(said)))
    worker.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(worker))
    own = job("matmul", "cpu:1", cache_path=str(tmp_path), self_contained=True)
    assert compile_job(own, limits=Limits(wall_s=2)) == said
    assert not (tmp_path / "compiled").exists()  # since it is not explained yet


STARTS = """
from shardwise.check.compiling.process import compile_job
from tests.unit.check.compiling.test_worker import job
compile_job(job("sleeping", "cpu:1"), on_stage=lambda stage, _: print(stage, flush=True))
"""


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_alive(pid: int) -> bool:
    """Whether it runs, which an ended process that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@needs("cpu")
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc to find processes in")
@pytest.mark.parametrize(
    ("name", "stage"), [("SIGTERM", "starting"), ("SIGHUP", "starting"), ("SIGKILL", "building")]
)
def test_it_ends_with_the_process_that_started_it(name: str, stage: str, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STARTS],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    ) as starter:
        assert starter.stdout is not None
        while starter.stdout.readline() != f"{stage}\n":
            assert starter.poll() is None
        (worker,) = children(starter.pid)
        starter.send_signal(getattr(signal, name))
    deadline = time.monotonic() + 30
    while is_alive(worker) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not is_alive(worker)
    assert list(tmp_path.iterdir()) == []


@needs("cpu")
def test_the_clock_ends_it() -> None:
    start = time.monotonic()
    failure = compile_job(job("sleeping", "cpu:1"), limits=Limits(wall_s=2))
    assert isinstance(failure, Timeout)
    assert failure.limit_s == 2
    assert time.monotonic() - start < 20


@needs("cpu")
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc to read memory from")
def test_its_own_memory_ends_it() -> None:
    limit = 3 * 2**28  # above what JAX takes, below what the program adds
    failure = compile_job(job("hungry", "cpu:1"), limits=Limits(rss_bytes=limit))
    assert isinstance(failure, MemoryLimit)
    assert failure.stage == "building"
    assert failure.reached > failure.limit == limit


@needs("cpu")
def test_nothing_is_left_in_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(os.getcwd())
    monkeypatch.chdir(tmp_path)
    assert isinstance(compile_job(job("matmul", "cpu:1")), Compiled)
    assert list(tmp_path.iterdir()) == []


@needs("cpu")
def test_the_cache_gives_the_same_program(tmp_path: Path) -> None:
    first, second = (
        compile_job(job("matmul", "cpu:1", cache_path=str(tmp_path))) for _ in range(2)
    )
    assert isinstance(first, Compiled)
    assert isinstance(second, Compiled)
    assert not first.cached
    assert second.cached
    assert second.hlo == first.hlo
    assert second.memory == first.memory
