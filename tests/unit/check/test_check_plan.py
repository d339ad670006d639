"""Tiny plans through the real compilers, from Python and from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import shardwise as sw
from shardwise.check.compiling.environment import installed_compilers
from shardwise.check.verdict import Verdict
from shardwise.cli import main
from shardwise.errors import BadInput
from shardwise.strategy.layout import Layout
from shardwise.strategy.mesh import Mesh
from tests.unit.check.test_comparison import MODEL

TINY = "llama3-8b,n_layers=2,d_model=512,d_ff=1024,n_heads=4,n_kv_heads=2,d_head=128,vocab=2048"
needs_tpu = pytest.mark.skipif("tpu" not in installed_compilers(), reason="libtpu is not installed")


def planned(hardware: str, fixed: dict[str, int | str], model: sw.ModelConfig = MODEL) -> sw.Plan:
    return sw.plan(model, sw.hardware(hardware), sw.Train(batch=8, seq=64), fixed)


@pytest.fixture(scope="module")
def verdict(tmp_path_factory: pytest.TempPathFactory) -> Verdict:
    trace = tmp_path_factory.mktemp("trace") / "step.json"
    # It is the example of docs/check.md and a row of bench/check.py: the first of them compiles it.
    plan = planned("v5e:2x2", {"tensor": 2, "fsdp": 2}, sw.model(TINY))
    found = sw.check(plan, trace=trace)
    assert json.loads(trace.read_text())["traceEvents"]
    return found


@needs_tpu
def test_a_plan_is_proved_by_the_tpu_compiler(verdict: Verdict) -> None:
    assert (verdict.compiler, verdict.verdict, verdict.fits) == ("tpu", "proved", True)
    rows = {(r.role, r.kind): r for r in verdict.collectives}
    for kind in ("all_gather", "reduce_scatter"):
        row = rows["tensor", kind]
        assert row.compiled_n == row.planned_n > 0
        assert row.compiled_bytes == pytest.approx(row.planned_bytes, rel=0.02)


@needs_tpu
def test_the_compiled_step_has_memory_flops_and_seconds(verdict: Verdict) -> None:
    compiled = verdict.compiled
    assert compiled is not None
    assert compiled.peak_bytes is not None
    assert compiled.step_s is not None
    assert compiled.step_s.cycles is not None
    # Without a kernel for so short sequences the whole square of scores is computed.
    assert verdict.planned.flops <= compiled.flops < 1.1 * verdict.planned.flops
    assert compiled.step_s.roofline > verdict.planned.step_s.lower


@needs_tpu
@pytest.mark.oracle
@pytest.mark.parametrize("hardware", ["v6e:2x2", "7x:2x2x1"])
def test_sparse_cores_gather_and_sum_over_all_axes_of_the_torus(hardware: str) -> None:
    """One asynchronous collective over the whole slice, not one for each axis nor an AllReduce."""
    verdict = sw.check(planned(hardware, {"fsdp": 4}, sw.model(TINY)))
    rows = {(r.role, r.kind): r for r in verdict.collectives}
    for kind in ("all_gather", "reduce_scatter"):
        row = rows["fsdp", kind]
        assert row.compiled_n == row.planned_n > 0
        assert row.compiled_bytes == row.planned_bytes
        assert row.asynchronous > 0.9


@needs_tpu
@pytest.mark.oracle
def test_tokens_travel_to_their_experts_while_layers_compute() -> None:
    model = sw.model(
        "mixtral-8x7b,n_layers=2,d_model=512,d_ff=512,n_heads=4,n_kv_heads=2,vocab=2048"
    )
    verdict = sw.check(planned("v5e:2x2", {"expert": 4}, model))
    (row,) = [r for r in verdict.collectives if (r.role, r.kind) == ("expert", "all_to_all")]
    assert row.planned_bytes > 0
    assert row.compiled_bytes == pytest.approx(row.planned_bytes, rel=0.02)
    assert row.asynchronous > 0.9


@needs_tpu
@pytest.mark.oracle
def test_collectives_that_the_compiler_chooses_stand_beside_the_planned() -> None:
    # XLA's partitioner sums gradients of bf16 products in bf16, whatever they are added up in.
    job = sw.Train(batch=8, seq=64, gradients="bf16")
    plan = sw.plan(MODEL, sw.hardware("v5e:2x2"), job, {"tensor": 2, "fsdp": 2})
    verdict = sw.check(plan, cache=False)
    other = sw.check(plan, cache=False, collectives="compiler")
    assert other.fits
    assert other.verdict != "collectives missing"
    assert other.note.startswith("XLA's partitioner chose the collectives")
    rows = {(r.role, r.kind): r for r in other.collectives}
    for row in verdict.collectives:
        if row.role in ("tensor", "fsdp"):
            found = rows[row.role, row.kind]
            assert found.planned_bytes == row.planned_bytes
            assert 0.7 * row.compiled_bytes < found.compiled_bytes < 1.02 * row.compiled_bytes
    assert set(rows) > {(r.role, r.kind) for r in verdict.collectives}


@pytest.mark.usefixtures("builds_here")
def test_what_is_not_partitioned_is_refused_in_words() -> None:
    plan = planned("v5e:2x2", {"pipe": 2, "schedule": "1f1b"})
    with pytest.raises(BadInput, match="schedule 1f1b is a program for each stage"):
        sw.check(plan, cache=False, collectives="compiler")
    with pytest.raises(BadInput, match='unknown chooser of collectives "gspmd"'):
        sw.check(plan, cache=False, collectives="gspmd")


@pytest.mark.oracle
def test_where_no_compiler_of_the_chip_is_the_cpus_stands_in() -> None:
    if "gpu" in installed_compilers():
        pytest.skip("the GPU's compiler is installed")
    given: dict[str, int | str] = {"tensor": 2, "fsdp": 2, "loss_chunks": 4}
    verdict = sw.check(planned("h100:4", given), cache=False)
    assert verdict.compiler == "cpu"
    assert verdict.fits is None
    assert "Memory and time are not checked" in verdict.note
    rows = {(r.role, r.kind): r for r in verdict.collectives}
    row = rows["tensor", "reduce_scatter"]
    assert row.compiled_n == row.planned_n > 0
    # The unembedding of all chunks is gathered once, and its gradient scattered once.
    for kind in ("all_gather", "reduce_scatter"):
        row = rows["fsdp", kind]
        assert row.compiled_n == row.planned_n > 0


@pytest.mark.oracle
def test_the_cpus_program_sends_int8_and_passes_tokens_on() -> None:
    if "gpu" in installed_compilers():
        pytest.skip("the GPU's compiler is installed")
    job = sw.Train(batch=8, seq=64, reduce="int8", overlap=("tp_comm",))
    plan = sw.plan(MODEL, sw.hardware("h100:4"), job, {"data": 2, "tensor": 2, "zero": 0})
    rows = {(r.role, r.kind): r for r in sw.check(plan, cache=False).collectives}
    for key in (("data", "all_to_all"), ("data", "all_gather")):
        assert rows[key].compiled_bytes == pytest.approx(rows[key].planned_bytes, rel=0.05)
    row = rows["tensor", "permute"]
    assert row.compiled_n == row.planned_n > 0


@pytest.mark.usefixtures("builds_here")
@pytest.mark.parametrize(
    ("reduce", "fixed", "said"),
    [
        ("int8", {"data": 4, "zero": 2, "n_microbatches": 2}, "--fix zero=1 rounds them once"),
        (
            "fp8",
            {"data": 4, "zero": 1},
            "reduce fp8: the planner supports it, the runtime does not yet",
        ),
    ],
)
def test_sums_that_the_runtime_does_not_do(
    reduce: str, fixed: dict[str, int | str], said: str
) -> None:
    job = sw.Train(batch=8, seq=64, reduce=reduce)
    with pytest.raises(BadInput, match=said):
        sw.check(sw.plan(MODEL, sw.hardware("v5e:2x2"), job, fixed), cache=False)


def test_what_the_runtime_does_not_do_is_refused_in_words() -> None:
    plan = planned("v5e:2x2", {"pipe": 2, "schedule": "dualpipe"})
    with pytest.raises(
        BadInput, match="schedule dualpipe: the planner supports it, the runtime does not yet"
    ):
        sw.check(plan, cache=False)


def test_a_file_that_is_no_plan_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "nothing.json"]) == 2
    assert "nothing.json" in capsys.readouterr().err


@needs_tpu
@pytest.mark.oracle
def test_the_command_says_it_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDWISE_CACHE", str(tmp_path))
    path = tmp_path / "plan.json"
    planned("v5e:2x2", {"data": 4, "zero": 1}).save(str(path))
    # Sums of gradients that the compiler does not scatter take longer than any plan of them.
    assert main(["check", str(path)]) == 4
    first = " ".join(capsys.readouterr().out.split())
    assert first.startswith("Not proved by XLA's TPU compiler: tiny on v5e:2x2 fits, sends what")
    assert "slower waits for data (all-reduce): " in first
    assert main(["check", str(path), "--json"]) == 4
    said = json.loads(capsys.readouterr().out)
    assert (said["verdict"], said["takes_planned_time"]) == ("differs", False)
    assert said["deviations"][0]["quantity"] == "time"


@needs_tpu
@pytest.mark.oracle
def test_chunks_of_the_loss_save_what_is_planned_and_send_the_same() -> None:
    """Logits of 1,024 tokens of a vocabulary of 16,384, in one piece and in four."""
    model = sw.ModelConfig.dense(
        n_layers=1, d_model=128, d_ff=256, n_heads=1, d_head=128, vocab=16384
    )
    job = sw.Train(batch=64, seq=64, remat="none", gradients="bf16", master=None)
    pod = sw.hardware("v5e:2x2")
    planned, peaks, sent = [], [], []
    for n in (1, 4):
        plan = sw.plan(model, pod, job, {"fsdp": 4, "micro_batch": 16, "loss_chunks": n})
        found = sw.check(plan, cache=False)
        assert found.fits
        assert found.sends_as_planned
        assert found.compiled is not None
        assert found.compiled.peak_bytes is not None
        assert found.compiled.flops == pytest.approx(found.planned.flops, rel=0.01)
        planned.append(plan.memory.total)
        peaks.append(found.compiled.peak_bytes)
        sent.append([(r.role, r.kind, r.compiled_n, r.compiled_bytes) for r in found.collectives])
        fsdp = [row for row in found.collectives if row.role == "fsdp"]
        assert [r.compiled_bytes for r in fsdp] == pytest.approx([r.planned_bytes for r in fsdp])
    assert peaks == pytest.approx(planned, rel=0.1)
    assert peaks[0] - peaks[1] > 0.95 * (planned[0] - planned[1])
    assert sent[0] == sent[1]


@needs_tpu
@pytest.mark.oracle
def test_what_waits_in_host_memory_leaves_the_chip() -> None:
    """Activations and optimizer, of three layers: as many bytes as the plan says, and sends nothing
    more."""
    model = sw.ModelConfig.dense(
        n_layers=3, d_model=1024, d_ff=2048, n_heads=8, d_head=128, vocab=2048
    )
    pod, fixed = sw.hardware("v5e:2x2"), {"fsdp": 4, "micro_batch": 32}
    plans, found = [], []
    for words in ((), ("optimizer", "activations")):
        recipe = {"gradients": "bf16", "master": None}
        job = sw.Train(batch=128, seq=64, remat="none", offload=words, **recipe)
        plans.append(sw.plan(model, pod, job, fixed))
        found.append(sw.check(plans[-1], cache=False))
        assert found[-1].fits
        assert found[-1].sends_as_planned
        assert not found[-1].differences
    here, away = (verdict.compiled for verdict in found)
    assert here is not None
    assert away is not None
    waits = plans[0].memory.optimizer + plans[0].memory.activations
    assert (here.host_bytes, away.host_bytes) == (0, pytest.approx(waits, rel=0.01))
    saved = plans[0].memory.total - plans[1].memory.total
    assert here.peak_bytes is not None
    assert away.peak_bytes is not None
    # What is on its way from and to the host has room on the chip; the plan counts it otherwise.
    assert here.peak_bytes - away.peak_bytes == pytest.approx(saved, rel=0.15)
    assert away.peak_bytes < plans[1].memory.total


@pytest.mark.usefixtures("builds_here")
@pytest.mark.parametrize(
    ("form", "said"),
    [
        (
            {"offload": ("gradients",)},
            "offload gradients: the planner supports it, the runtime does not yet",
        ),
        (
            {"offload": ("activations",), "offload_layers": 2},
            "offload of 2 layers only: the planner supports it, the runtime does not yet",
        ),
    ],
)
def test_what_does_not_wait_in_host_memory_is_refused(form: dict[str, Any], said: str) -> None:
    layout = Layout(mesh=Mesh(data=4), micro_batch=2, **form)
    job = sw.Train(batch=8, seq=64)
    plan = sw.evaluate(MODEL, sw.hardware("v5e:2x2"), job, layout)
    with pytest.raises(BadInput, match=said):
        sw.check(plan, cache=False)


@pytest.mark.usefixtures("builds_here")
def test_stages_keep_their_activations_on_the_chip() -> None:
    job, fixed = sw.Train(batch=8, seq=64, offload=("activations",)), {"pipe": 2}
    plan = sw.plan(MODEL, sw.hardware("v5e:2x2"), job, fixed)
    with pytest.raises(
        BadInput, match="Run shardwise plan with --max pipe=1, or with --offload optimizer"
    ):
        sw.check(plan, cache=False)
