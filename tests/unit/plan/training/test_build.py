"""What a plan says adds up, and its reasons say what the numbers say."""

from __future__ import annotations

import functools

import pytest

import shardwise as sw
from shardwise.errors import BadInput, BadShape, NotDivisible, UnknownName
from shardwise.estimate.calibration import calibration
from shardwise.hardware import catalog_chip
from shardwise.plan import Plan
from shardwise.plan.machine import topology_text
from shardwise.plan.schema.training_reasons import Bubble, Communication, TensorSplit, TokensPerChip
from shardwise.plan.training.operations import busiest_stage
from shardwise.plan.training.rebuild import rebuild
from shardwise.report.training.reasons import loss_text, reason_text
from shardwise.report.words import listed
from shardwise.search.training import rank
from shardwise.strategy.mesh import place
from shardwise.vocabulary import REMAT_POLICIES

close = functools.partial(pytest.approx, rel=1e-9)
ROLES = ("tensor", "context", "expert", "fsdp", "data", "pipe", "host")

LLAMA = sw.model("llama3-70b")
BOOK = sw.Train(batch=1120, seq=4096, tokens=15e12, gradients="bf16", master=None)
POD, SLICE = sw.hardware("v5p:16x20x28"), sw.hardware("v5p:4x4x8")
# (model, machine, work, what is given, at peak rates)
CASES: list[tuple[str, str, sw.Train, dict[str, int | str], bool]] = [
    ("llama3-8b", "v5p:4x4x4", sw.Train(batch=64, seq=4096, tokens=15e12), {}, False),
    ("llama3-8b", "v5p:4x4x4", sw.Train(batch=64, seq=4096), {}, True),
    ("llama3-70b", "h100:128", sw.Train(batch=128, seq=4096), {"schedule": "interleaved"}, False),
    (
        "llama3-8b",
        "h100:16",
        sw.Train(batch=64, seq=4096),
        {"pipe": 2, "schedule": "dualpipe"},
        False,
    ),
    ("mixtral-8x7b", "v5e:8x8*2", sw.Train(batch=128, seq=2048, remat="full"), {}, False),
    ("deepseek-v2-lite", "h100:16", sw.Train(batch=32, seq=4096), {"expert": 2}, False),
    ("qwen2-0.5b", "h100:1", sw.Train(batch=1, seq=1024), {}, False),
]


@pytest.fixture(scope="module", params=CASES, ids=lambda c: f"{c[0]}-{c[1]}-{c[3]}")
def plan(request: pytest.FixtureRequest) -> Plan:
    name, machine, job, fixed, peak = request.param
    return sw.plan(sw.model(name), sw.hardware(machine), job, fixed, peak=peak)


@pytest.fixture(scope="module")
def book() -> Plan:
    """As the book plans: FSDP and tensor, no pipeline, every product at the peak."""
    return sw.plan(LLAMA, POD, BOOK, {"zero": 3, "pipe": 1}, peak=True)


def test_the_plan_of_the_book(book: Plan) -> None:
    """Pure FSDP is communication-bound on a v5p pod; 4- to 8-way tensor is not. Book §6."""
    assert book.strategy.mesh["tensor"] in (4, 8)
    assert book.estimate.bound == "compute"
    (tokens,) = (r for r in book.why if r.constraint == "tokens_per_chip")
    assert isinstance(tokens, TokensPerChip)
    assert (tokens.tokens, tokens.network, tokens.axes) == (512, "ici", 3)
    assert (tokens.needed, tokens.bytes_per_s) == (pytest.approx(850), 540e9)
    assert tokens.margin == pytest.approx(512 / 850, rel=1e-12)
    given = {"zero": 3, "pipe": 1, "tensor": 1, "context": 8}
    pure = sw.plan(LLAMA, POD, BOOK, given, peak=True)
    assert pure.estimate.bound == "communication"
    (communication,) = (r for r in pure.why if r.constraint == "communication")
    assert isinstance(communication, Communication)
    assert max(communication.traffic_s, key=lambda r: communication.traffic_s[r]) == "fsdp"
    assert 1 / 3 < communication.margin < 1
    assert pure.step.lower > book.step.lower
    assert book.step.lower == pytest.approx(0.483, rel=0.02)
    assert str(book).startswith("llama3-70b on v5p:16x20x28: ")


def test_why_there_is_tensor_parallelism() -> None:
    """The best without tensor is told, with what it loses on."""
    job = sw.Train(batch=128, seq=4096)
    plan = sw.plan(LLAMA, SLICE, job, {"tensor": 4}, peak=True)
    free = sw.plan(LLAMA, SLICE, job, peak=True)
    told = [r for r in free.why if r.constraint in ("tensor", "data")]
    assert len(told) == 1
    split = free.strategy.mesh["tensor"] > 1
    assert told[0].constraint == ("tensor" if split else "data")
    assert isinstance(told[0], TensorSplit)
    assert (told[0].mesh["tensor"] == 1) == split
    assert told[0].margin >= 1
    assert free.step.expected <= plan.step.expected * (1 + 1e-9)


def test_44_days_at_the_mfu_of_the_book(book: Plan) -> None:
    at = book.estimate.at_mfu
    assert at.mfu == 0.4
    assert at.run_s / 86400 == pytest.approx(46.1, rel=1e-2)
    assert at.usd == pytest.approx(at.chip_hours * 4.2)


def test_bounds_and_shares(plan: Plan) -> None:
    estimate = plan.estimate
    assert estimate.step_s.lower <= estimate.step_s.expected <= estimate.step_s.upper
    assert 0 < estimate.mfu <= 1
    assert 0 <= estimate.bubble_fraction < 1
    assert (estimate.bubble_fraction > 0) <= (plan.strategy.schedule != "none")
    n, tokens = plan.hardware.n_chips, plan.workload.tokens_per_step
    assert tokens == plan.workload.batch * plan.workload.seq
    assert estimate.tokens_per_s == tokens / estimate.step_s.expected
    assert estimate.tokens_per_s_per_chip == pytest.approx(estimate.tokens_per_s / n, rel=1e-12)
    if plan.workload.tokens:
        assert estimate.run_s == pytest.approx(plan.workload.tokens / estimate.tokens_per_s)
        assert estimate.chip_hours == pytest.approx(estimate.run_s * n / 3600)
    else:
        assert estimate.run_s is estimate.chip_hours is estimate.usd is estimate.joules is None


def test_energy_of_a_run_is_at_most_that_of_its_chips(plan: Plan) -> None:
    estimate = plan.estimate
    watts = plan.hardware.figures.get("power.chip")
    if estimate.run_s is None or watts is None:
        assert estimate.joules is None
    else:
        expected = estimate.run_s * plan.hardware.n_chips * watts
        assert estimate.joules == pytest.approx(expected, rel=1e-12)


def test_the_expected_step_is_the_sum_of_its_parts(plan: Plan) -> None:
    estimate = plan.estimate
    parts = estimate.expected_s
    assert sum(parts.values()) == pytest.approx(estimate.step_s.expected, rel=1e-12)
    assert min(parts.values()) > 0
    waited = sum(t for part, t in parts.items() if part in ROLES)
    assert waited == pytest.approx(estimate.exposed_comm_s, rel=1e-12, abs=1e-15)
    assert set(parts) <= {"layers", "ends", "bubble", "update", *ROLES}
    bubble = estimate.bubble_fraction * estimate.step_s.expected
    assert parts.get("bubble", 0.0) == pytest.approx(bubble, rel=1e-12)


def test_the_rates_that_were_used() -> None:
    job = sw.Train(batch=16, seq=2048)
    model, system = sw.model("llama3.2-1b"), sw.hardware("h100:8")
    real, peak = (sw.plan(model, system, job, peak=p).estimate for p in (False, True))
    cal = calibration(catalog_chip("h100"))
    assert (real.rates.name, real.rates.as_of, real.rates.source) == (
        cal.name, cal.as_of, cal.source,
    )  # fmt: skip
    assert real.rates.spread == cal.spread
    assert real.rates.name == "h100"
    assert peak.rates.name == "peak"
    assert peak.step_s.expected < real.step_s.expected
    assert peak.step_s.lower <= peak.step_s.expected


def test_memory_adds_up_and_fits(plan: Plan) -> None:
    memory = plan.memory
    parts = (memory.weights, memory.gradients, memory.optimizer, memory.activations,
             memory.kv_cache, memory.other)  # fmt: skip
    assert memory.total == memory.per_chip == pytest.approx(sum(parts), rel=1e-12)
    assert memory.margin > 0
    assert memory.total + memory.margin <= memory.capacity


def test_operations_add_up_to_the_estimate(plan: Plan) -> None:
    """Every number of the roofline is a sum over the listed operations; sums of vectors, less than
    a thousandth of the others, have no seconds."""
    estimate, by_role = plan.estimate, {}
    for op in plan.operations:
        if op.collective and op.time_s:
            by_role[op.role] = by_role.get(op.role, 0.0) + op.time_s
    assert by_role == pytest.approx(estimate.comm_s, rel=1e-9)
    local = [op for op in plan.operations if not op.collective]
    stages = (plan.operations, plan.model.n_layers, plan.layout)
    assert busiest_stage(*stages, lambda op: op.math_s) == close(estimate.compute_s)
    assert busiest_stage(*stages, lambda op: op.hbm_s) == close(estimate.hbm_s)
    on_chip = busiest_stage(*stages, lambda op: op.time_s)
    if plan.strategy.schedule == "none":
        assert sum(op.math_s for op in local) == close(estimate.compute_s)
        assert sum(op.hbm_s for op in local) == close(estimate.hbm_s)
        assert sum(op.time_s for op in local) == close(on_chip)
    # A roofline of many products lies between its sides and their sum.
    assert on_chip >= max(estimate.compute_s, estimate.hbm_s) * (1 - 1e-12)
    assert on_chip <= (estimate.compute_s + estimate.hbm_s) * (1 + 1e-12)
    if plan.strategy.schedule == "none":
        lower = max(on_chip, *by_role.values(), 0.0)
        assert lower == pytest.approx(estimate.step_s.lower, rel=1e-9)
    flops = busiest_stage(*stages, lambda op: op.flops)
    assert flops / plan.hardware.figures["peak.bf16"] == close(estimate.compute_s)


def test_model_flops_are_no_more_than_those_of_the_operations(plan: Plan) -> None:
    done = sum(op.flops for op in plan.operations) * plan.hardware.n_chips
    model = plan.estimate.mfu * plan.step.expected * plan.hardware.n_chips
    model *= plan.hardware.figures["peak.bf16"]
    assert model <= done * (1 + 1e-9)
    # Key heads that are fewer than the tensor size are computed on several chips, and the busiest
    # stage of a pipeline has both ends of the model in the list.
    whole_heads = plan.model.n_kv_heads % plan.strategy.mesh["tensor"] == 0
    plain = plan.strategy.schedule == "none" and plan.strategy.remat in ("none", "norms", "dots")
    if plain and plan.model.n_experts == 0 and whole_heads:
        assert model == pytest.approx(done, rel=1e-9)


def test_the_mesh_uses_every_chip(plan: Plan) -> None:
    n = 1
    for size in plan.strategy.mesh.values():
        n *= size
    assert n == plan.hardware.n_chips
    used = {role for role, size in plan.strategy.mesh.items() if size > 1}
    assert set(plan.strategy.placement) == used
    # Stages hold whole layers: no dim of an array lies over them.
    axes = {axis for axes in plan.strategy.rules.values() for axis in axes}
    assert axes == used - {"pipe"}


def test_the_strategy_computes_the_batch(plan: Plan) -> None:
    strategy, mesh = plan.strategy, plan.strategy.mesh
    shards = mesh["data"] * mesh["fsdp"] * mesh["expert"]
    assert strategy.micro_batch * strategy.n_microbatches * shards == plan.workload.batch
    assert (strategy.schedule != "none") == (mesh["pipe"] > 1)
    assert (strategy.virtual > 1) == (strategy.schedule == "interleaved")
    assert (strategy.zero == 3) >= (mesh["fsdp"] > 1)
    assert strategy.remat in REMAT_POLICIES
    assert strategy.recomputed == REMAT_POLICIES[strategy.remat]


def test_alternatives_are_other_tensor_sizes_and_no_better(plan: Plan) -> None:
    widths = [a.mesh["tensor"] for a in plan.alternatives]
    assert len({*widths, plan.strategy.mesh["tensor"]}) == len(widths) + 1
    for other in plan.alternatives:
        assert loss_text(other.loses_on)
        assert (other.loses_on.kind == "memory") == (not other.fits)
        assert (other.schedule != "none") == (other.mesh["pipe"] > 1)
        assert other.zero in range(4)
        if other.fits:
            assert other.step_s.expected >= plan.step.expected


def test_a_pipeline_says_what_it_waits_for(plan: Plan) -> None:
    told = [r for r in plan.why if r.constraint == "bubble"]
    assert len(told) == (plan.strategy.schedule != "none")
    for reason in told:
        strategy = plan.strategy
        assert isinstance(reason, Bubble)
        assert reason.n_microbatches == strategy.n_microbatches
        assert reason.micro_batch == strategy.micro_batch
        assert reason.stages == strategy.mesh["pipe"]
        assert reason.schedule == strategy.schedule


def test_every_reason_is_a_sentence(plan: Plan) -> None:
    assert plan.why[-1].constraint == "memory"
    for reason in plan.why:
        assert reason_text(reason).endswith(".")
        assert 0 < reason.margin < float("inf")


def test_the_next_best_placement_is_slower_than_the_plan() -> None:
    job = sw.Train(batch=1120, seq=4096)
    plan = sw.plan(sw.model("llama3-70b"), sw.hardware("v5p:16x20x28"), job)
    other = plan.strategy.next_placement
    assert other is not None
    assert other.placement.keys() == plan.strategy.placement.keys()
    case = rebuild(plan)
    times = []
    for placement in place(case.system, case.layout.sizes, best=True):
        step = rank.evaluate(case.model, case.system, job, case.layout, case.cal, placement)
        times.append(float(step.time.step_s))
    slower = [seconds for seconds in times if seconds > plan.step.expected * (1 + 1e-6)]
    assert other.step_s == min(slower)
    assert min(times) == plan.step.expected
    gpus = sw.plan(sw.model("llama3-8b"), sw.hardware("h100:16"), sw.Train(batch=64, seq=4096))
    assert gpus.strategy.next_placement is None  # a switch has one way to connect them


def test_search_gives_the_best_first() -> None:
    job = sw.Train(batch=128, seq=4096)
    found = sw.search(LLAMA, SLICE, job, n=4)
    assert len(found) == 4
    assert len({tuple(p.strategy.mesh.values()) for p in found}) == 4
    times = [p.step.expected for p in found]
    assert times == sorted(times)
    assert found[0] == sw.plan(LLAMA, SLICE, job)


def test_a_role_that_is_given() -> None:
    job = sw.Train(batch=128, seq=4096)
    fixed = sw.plan(LLAMA, SLICE, job, {"tensor": 8, "data": 1})
    assert (fixed.strategy.mesh["tensor"], fixed.strategy.mesh["data"]) == (8, 1)
    mesh = sw.Mesh(**fixed.strategy.mesh)
    assert sw.evaluate(LLAMA, SLICE, job, mesh).step == fixed.step


def test_a_limit_that_is_given() -> None:
    job = sw.Train(batch=128, seq=4096)
    plan = sw.plan(LLAMA, SLICE, job, most={"data": 2, "context": 1, "pipe": 2})
    mesh = plan.strategy.mesh
    assert mesh["data"] <= 2
    assert mesh["context"] == 1
    assert mesh["pipe"] <= 2
    assert plan.step.expected >= sw.plan(LLAMA, SLICE, job).step.expected


@pytest.mark.parametrize(
    ("fixed", "error", "told"),
    [
        ({"tensor": 0}, BadShape, "tensor 0 is below 1."),
        ({"tensor": 12}, NotDivisible, "tensor 12 does not divide: n_heads 64 (/12 = 5.3)"),
        ({"fsdp": 3}, NotDivisible, "fsdp 3 leaves 128 / 3 = 42.67 chips for the other axes"),
        ({"expert": 2}, NotDivisible, "expert 2: llama3-70b has no experts to shard"),
        ({"zero": 4}, BadShape, "zero 4 is not a stage of ZeRO"),
    ],
)
def test_roles_that_cannot_be(fixed: dict[str, int], error: type[BadInput], told: str) -> None:
    with pytest.raises(error) as raised:
        sw.plan(LLAMA, SLICE, sw.Train(batch=128, seq=4096), fixed)
    assert told in str(raised.value)


def test_a_role_that_there_is_not() -> None:
    with pytest.raises(UnknownName, match="tensr"):
        sw.plan(LLAMA, SLICE, sw.Train(batch=128, seq=4096), {"tensr": 2})


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
    zeros = [sw.evaluate(model, pod, job, m).strategy.zero for m in meshes]
    assert zeros[0] in (1, 2)
    assert zeros[1] == 3
    assert zeros[2] in (1, 2, 3)
    assert sw.plan(model, pod, job, {"data": 64, "zero": 0}).strategy.zero == 0


def test_names_are_not_models_and_machines() -> None:
    with pytest.raises(BadInput) as error:
        sw.plan("llama3-8b", "h100:8", None)
    assert error.value.problems == (
        "'llama3-8b' is not what sw.model(...) returns.",
        "'h100:8' is not what sw.hardware(...) returns.",
        "None is not what sw.Train(...) returns.",
    )
    for read in (sw.model, sw.hardware):
        with pytest.raises(BadInput, match=r"3 is (not a|neither a) name"):
            read(3)


def test_words_are_listed() -> None:
    assert listed(["data"]) == "data"
    assert listed(["data", "fsdp"]) == "data and fsdp"
    assert listed(["data", "fsdp", "pipe"]) == "data, fsdp and pipe"
