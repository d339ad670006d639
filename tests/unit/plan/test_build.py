"""What a plan says adds up, and its reasons say what the numbers say."""

from __future__ import annotations

import re

import pytest

import shardwise as sw
from shardwise.errors import BadInput, BadShape, NotDivisible, UnknownName
from shardwise.plan import Plan
from shardwise.plan.build import topology_text

LLAMA = sw.model("llama3-70b")
BOOK = sw.Train(batch=1120, seq=4096, tokens=15e12)
CASES = [
    ("llama3-70b", "v5p:16x20x28", BOOK),
    ("llama3-70b", "h100:16384", sw.Train(batch=4096, seq=4096, tokens=15e12)),
    ("mixtral-8x7b", "v5e:16x16*2", sw.Train(batch=512, seq=2048, remat="full")),
    ("qwen2-0.5b", "h100:1", sw.Train(batch=1, seq=1024)),
]


@pytest.fixture(scope="module", params=CASES, ids=lambda c: f"{c[0]}-{c[1]}")
def plan(request: pytest.FixtureRequest) -> Plan:
    name, machine, job = request.param
    return sw.plan(sw.model(name), sw.hardware(machine), job)


@pytest.fixture(scope="module")
def book() -> Plan:
    return sw.plan(LLAMA, sw.hardware("v5p:16x20x28"), BOOK)


def test_the_plan_of_the_book(book: Plan) -> None:
    """Pure FSDP is communication-bound on a v5p pod; 4- to 8-way tensor is not. Book §6."""
    assert book.strategy.mesh["tensor"] in (4, 8)
    assert book.estimate.bound == "compute"
    (tensor,) = (r for r in book.why if r.constraint == "tensor")
    assert tensor.text.startswith("Pure data sharding, sequences cut 8 ways (")
    assert re.search(r"communication-bound x[12]\.\d", tensor.text)
    assert tensor.margin > 1
    (tokens,) = (r for r in book.why if r.constraint == "tokens_per_chip")
    assert tokens.text.startswith("512 tokens per chip, below the 850 (peak over 540 GB/s of 3")
    assert tokens.margin == pytest.approx(512 / 850, rel=1e-12)
    pure = next(a for a in book.alternatives if a.mesh["tensor"] == 1)
    assert pure.step_s.lower > book.step.lower
    assert book.step.lower == pytest.approx(0.483, rel=0.02)
    assert str(book).startswith("llama3-70b on v5p:16x20x28: ")


def test_44_days_at_the_mfu_of_the_book(book: Plan) -> None:
    at = book.estimate.at_mfu
    assert at.mfu == 0.4
    assert at.run_s / 86400 == pytest.approx(46.1, rel=1e-2)
    assert at.usd == pytest.approx(at.chip_hours * 4.2)


def test_bounds_and_shares(plan: Plan) -> None:
    estimate = plan.estimate
    assert estimate.step_s.lower <= estimate.step_s.expected <= estimate.step_s.upper
    assert 0 < estimate.mfu <= 1
    n, tokens = plan.hardware.n_chips, plan.workload.tokens_per_step
    assert tokens == plan.workload.batch * plan.workload.seq
    assert estimate.tokens_per_s == tokens / estimate.step_s.expected
    assert estimate.tokens_per_s_per_chip == pytest.approx(estimate.tokens_per_s / n, rel=1e-12)
    assert estimate.exposed_comm_s >= 0
    if plan.workload.tokens:
        assert estimate.run_s == pytest.approx(plan.workload.tokens / estimate.tokens_per_s)
        assert estimate.chip_hours == pytest.approx(estimate.run_s * n / 3600)
    else:
        assert estimate.run_s is estimate.chip_hours is estimate.usd is None


def test_memory_adds_up_and_fits(plan: Plan) -> None:
    memory = plan.memory
    parts = (memory.weights, memory.gradients, memory.optimizer, memory.activations,
             memory.kv_cache, memory.other)  # fmt: skip
    assert memory.total == memory.per_chip == pytest.approx(sum(parts), rel=1e-12)
    assert memory.total <= memory.capacity


def test_operations_add_up_to_the_estimate(plan: Plan) -> None:
    """Every number of the estimate is a sum over the listed operations."""
    estimate, by_role = plan.estimate, {}
    for op in plan.operations:
        if op.collective:
            by_role[op.role] = by_role.get(op.role, 0.0) + op.time_s
    assert by_role == pytest.approx(estimate.comm_s, rel=1e-9)
    on_chip = sum(op.time_s for op in plan.operations if not op.collective)
    assert on_chip + sum(by_role.values()) == pytest.approx(estimate.step_s.upper, rel=1e-9)
    hidden = sum(op.time_s for op in plan.operations if op.hidden)
    exposed = sum(op.time_s for op in plan.operations if op.collective and not op.hidden)
    assert max(on_chip, hidden) + exposed == pytest.approx(estimate.step_s.expected, rel=1e-9)
    flops = sum(op.flops for op in plan.operations)
    peak = plan.hardware.figures["peak.bf16"]
    assert flops / peak == pytest.approx(estimate.compute_s, rel=1e-9)


def test_model_flops_are_no_more_than_those_of_the_operations(plan: Plan) -> None:
    done = sum(op.flops for op in plan.operations) * plan.hardware.n_chips
    model = plan.estimate.mfu * plan.step.expected * plan.hardware.n_chips
    model *= plan.hardware.figures["peak.bf16"]
    assert model <= done * (1 + 1e-9)
    # Key heads that are fewer than the tensor size are computed on several chips.
    whole_heads = plan.model.n_kv_heads % plan.strategy.mesh["tensor"] == 0
    if plan.strategy.remat == "none" and plan.model.n_experts == 0 and whole_heads:
        assert model == pytest.approx(done, rel=1e-9)


def test_the_mesh_uses_every_chip(plan: Plan) -> None:
    n = 1
    for size in plan.strategy.mesh.values():
        n *= size
    assert n == plan.hardware.n_chips
    used = {role for role, size in plan.strategy.mesh.items() if size > 1}
    assert set(plan.strategy.placement) == used
    assert {axis for axes in plan.strategy.rules.values() for axis in axes} == used


def test_alternatives_are_other_tensor_sizes_and_no_better(plan: Plan) -> None:
    widths = [a.mesh["tensor"] for a in plan.alternatives]
    assert len({*widths, plan.strategy.mesh["tensor"]}) == len(widths) + 1
    for other in plan.alternatives:
        assert other.text
        if other.fits:
            assert other.step_s.expected >= plan.step.expected


def test_every_reason_is_a_sentence(plan: Plan) -> None:
    assert plan.why[-1].constraint == "memory"
    for reason in plan.why:
        assert reason.text.endswith(".")
        assert 0 < reason.margin < float("inf")


def test_search_gives_the_best_first() -> None:
    found = sw.search(LLAMA, sw.hardware("v5p:8x8x8"), sw.Train(batch=512, seq=4096), n=4)
    assert len(found) == 4
    times = [p.step.expected for p in found]
    assert times == sorted(times)
    assert found[0] == sw.plan(LLAMA, sw.hardware("v5p:8x8x8"), sw.Train(batch=512, seq=4096))


def test_a_role_that_is_given() -> None:
    job, pod = sw.Train(batch=512, seq=4096), sw.hardware("v5p:8x8x8")
    fixed = sw.plan(LLAMA, pod, job, {"tensor": 8, "data": 1})
    assert (fixed.strategy.mesh["tensor"], fixed.strategy.mesh["data"]) == (8, 1)
    mesh = sw.Mesh(**fixed.strategy.mesh)
    assert sw.evaluate(LLAMA, pod, job, mesh).step == fixed.step


def test_evaluate_gives_what_does_not_fit_too() -> None:
    plan = sw.evaluate(
        LLAMA, sw.hardware("v5e:4x4"), sw.Train(batch=16, seq=2048), sw.Mesh(fsdp=16)
    )
    assert plan.memory.total > plan.memory.capacity
    (memory,) = (r for r in plan.why if r.constraint == "memory")
    assert memory.margin < 1


@pytest.mark.parametrize(
    ("fixed", "error", "told"),
    [
        ({"tensor": 0}, BadShape, "tensor 0 is below 1."),
        ({"tensor": 12}, NotDivisible, "tensor 12 does not divide: n_heads 64 (/12 = 5.3)"),
        ({"fsdp": 3}, NotDivisible, "fsdp 3 leaves 512 / 3 = 170.67 chips for the other axes"),
        ({"expert": 2}, NotDivisible, "expert cannot be planned by this version"),
    ],
)
def test_roles_that_cannot_be(fixed: dict[str, int], error: type[BadInput], told: str) -> None:
    with pytest.raises(error) as raised:
        sw.plan(LLAMA, sw.hardware("v5p:8x8x8"), sw.Train(batch=512, seq=4096), fixed)
    assert told in str(raised.value)


def test_a_role_that_there_is_not() -> None:
    with pytest.raises(UnknownName, match="tensr"):
        sw.plan(LLAMA, sw.hardware("v5p:8x8x8"), sw.Train(batch=512, seq=4096), {"tensr": 2})


def test_all_reasons_against_a_mesh_are_told() -> None:
    with pytest.raises(NotDivisible) as error:
        sw.evaluate(LLAMA, sw.hardware("v5p:8x8x8"), sw.Train(batch=512, seq=4096),
                    sw.Mesh(tensor=12, fsdp=100))  # fmt: skip
    assert len(error.value.problems) == 5


@pytest.mark.parametrize(
    ("machine", "text"),
    [
        ("v5p:16x20x28", "torus 16x20x28, all axes wrap"),
        ("v5e:8x16", "torus 8x16, y wraps"),
        ("v5e:4x4", "torus 4x4, no axis wraps"),
        ("h100:64", "8 nodes of 8"),
        ("h100:4", "1 nodes of 4"),
        ("h100:16384", "2,048 nodes of 8"),
    ],
)
def test_topologies_in_words(machine: str, text: str) -> None:
    assert topology_text(sw.hardware(machine)) == text


def test_zero_says_whether_weights_are_sharded() -> None:
    job = sw.Train(batch=64, seq=2048)
    model, pod = sw.model("llama3.2-1b"), sw.hardware("v5p:4x4x4")
    meshes = (sw.Mesh(data=64), sw.Mesh(fsdp=64), sw.Mesh(data=32, context=2))
    assert [sw.evaluate(model, pod, job, m).strategy.zero for m in meshes] == [0, 3, 3]


def test_names_are_not_models_and_machines() -> None:
    with pytest.raises(BadInput) as error:
        sw.plan("llama3-8b", "h100:8", None)
    assert error.value.problems == (
        "'llama3-8b' is not what sw.model(...) returns.",
        "'h100:8' is not what sw.hardware(...) returns.",
        "None is not what sw.Train(...) returns.",
    )
    for read in (sw.model, sw.hardware):
        with pytest.raises(BadInput, match="3 is no name"):
            read(3)
