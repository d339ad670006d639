"""Validate a training plan as a whole: it can be rebuilt, and its facts agree with one another."""

from __future__ import annotations

from collections.abc import Iterator

from shardwise.formulas import cost
from shardwise.plan.machine import describe_links, errors_at
from shardwise.plan.schema.training import DTYPE_FIELDS, AtMfu, Estimate, Plan
from shardwise.plan.schema.validation import (
    Fact,
    check_keys,
    disagreements,
    memory_facts,
    model_facts,
    range_problems,
)
from shardwise.plan.training.operations import busiest_stage
from shardwise.plan.training.rebuild import rebuild
from shardwise.search.training.forms import read_fixed
from shardwise.search.training.legal import layout_problems, problems
from shardwise.search.training.problem import Case
from shardwise.strategy.layout import rules_of
from shardwise.strategy.mesh import ROLES


def plan_problems(plan: Plan) -> list[str]:
    """Problems of a plan: each names the key, its value, and what it must be.

    Raises:
        BadFile: a part of the plan cannot be rebuilt.
    """
    check_keys("$.strategy.mesh", plan.strategy.mesh, ROLES)
    check_keys("$.strategy.precision", plan.strategy.precision, DTYPE_FIELDS)
    with errors_at("$.strategy.fixed or $.strategy.most"):
        read_fixed(plan.strategy.fixed, plan.strategy.most)
    case = rebuild(plan)
    with errors_at("$.hardware.figures"):
        case.system.chip.peak(case.job.compute)
    return [
        *disagreements(model_facts(plan, case.model)),
        *disagreements(_strategy_facts(plan, case)),
        *_illegal_split(case),
        *range_problems("$.estimate.step_s", plan.estimate.step_s),
        *disagreements(_estimate_facts(plan, case)),
    ]


def _illegal_split(case: Case) -> list[str]:
    """Problems of a split that the model, the batch or the machine does not allow."""
    with errors_at("$.strategy"):
        split = problems(case.model, case.system, case.job, case.layout.sizes, whole=True)
        split += layout_problems(case.model, case.layout, case.job.seq)
    return [f"$.strategy: {problem}" for problem in split]


def _strategy_facts(plan: Plan, case: Case) -> Iterator[Fact]:
    work = plan.workload
    strategy = plan.strategy
    layout = case.layout
    job = case.job
    sequences = (
        f"micro_batch {layout.micro_batch:,} x n_microbatches {layout.n_microbatches:,} x "
        f"{layout.data_shards:,} shards"
    )
    yield Fact("$.workload.batch", work.batch, sequences, layout.global_batch)
    yield Fact(
        "$.workload.tokens_per_step", work.tokens_per_step, "batch x seq", work.batch * work.seq
    )
    links = describe_links(case.placement, layout.sizes)
    yield Fact("$.strategy.placement", strategy.placement, "that of the mesh", links)
    yield Fact("$.strategy.rules", strategy.rules, "that of the mesh", dict(rules_of(layout)))
    for name in DTYPE_FIELDS:
        dtype = getattr(job, name)
        if name == "reduce":
            dtype = job.reduce or job.gradients
        yield Fact(
            f"$.strategy.precision.{name}", strategy.precision[name], "that of the job", dtype
        )


def _estimate_facts(plan: Plan, case: Case) -> Iterator[Fact]:
    estimate = plan.estimate
    step_s = estimate.step_s.expected
    stages = (plan.operations, case.model.n_layers, case.layout)
    math_s = busiest_stage(*stages, lambda op: op.math_s)
    hbm_s = busiest_stage(*stages, lambda op: op.hbm_s)
    yield Fact(
        "$.estimate.compute_s", estimate.compute_s, "the sum of the operations' math_s", math_s
    )
    yield Fact("$.estimate.hbm_s", estimate.hbm_s, "the sum of the operations' hbm_s", hbm_s)
    parts_s = sum(estimate.expected_s.values())
    yield Fact("$.estimate.step_s.expected", step_s, "the sum of expected_s", parts_s)
    if step_s > 0:
        rate = plan.workload.tokens_per_step / step_s
        yield Fact("$.estimate.tokens_per_s", estimate.tokens_per_s, "that of the step", rate)
        yield Fact(
            "$.estimate.tokens_per_s_per_chip",
            estimate.tokens_per_s_per_chip,
            "tokens_per_s over the chips",
            estimate.tokens_per_s / case.system.n_chips,
        )
    yield Fact(
        "$.estimate.state_bytes_per_parameter",
        estimate.state_bytes_per_parameter,
        "that of the dtypes in $.strategy.precision",
        case.job.state_bytes,
    )
    yield from _run_facts("$.estimate", estimate, step_s, case)
    yield from _run_facts("$.estimate.at_mfu", estimate.at_mfu, estimate.at_mfu.step_s, case)
    yield from memory_facts("$.estimate.memory_bytes_per_chip", estimate.memory_bytes_per_chip)


def _run_facts(path: str, run: Estimate | AtMfu, step_s: float, case: Case) -> Iterator[Fact]:
    """Yield the time and price of the whole run, which follow from a step's time."""
    job = case.job
    derived: tuple[float | None, ...] = (None, None, None)
    if job.tokens is not None:
        price = case.system.chip.usd_per_chip_hour
        whole = cost.run(step_s, job.tokens, job.tokens_per_step, case.system.n_chips, price)
        derived = (whole.seconds, whole.chip_hours, whole.usd)
    for key, value in zip(("run_s", "chip_hours", "usd"), derived, strict=True):
        yield Fact(f"{path}.{key}", getattr(run, key), "that of the steps of all tokens", value)
