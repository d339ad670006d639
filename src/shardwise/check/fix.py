"""Alternatives to a plan that failed its check, each checked by the compiler in turn.

If it is enough to compute the loss in chunks (smaller logits), nothing else changes, since that
costs the least time. Otherwise the planner searches for the fastest plan that fits on the same
mesh; if there is none, on any mesh. In this search, the planned memory of every plan is multiplied
by the largest ratio of compiled to planned memory that has been seen so far.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from shardwise.check.options import CompileOptions
from shardwise.check.training import check_plan
from shardwise.check.verdict import Proposal, Verdict
from shardwise.errors import NoPlan
from shardwise.hardware.scale import scaled
from shardwise.plan.schema.training import Plan
from shardwise.plan.training.build import evaluate
from shardwise.plan.training.rebuild import rebuild
from shardwise.search.given import fixed_of
from shardwise.search.training import rank
from shardwise.search.training.legal import chunk_problems
from shardwise.search.training.problem import Case
from shardwise.strategy.layout import Layout

MAX_PROPOSALS = 3  # default number of proposals that are compiled
UNCHANGED_ROLES = ("context", "expert", "pipe")  # mesh roles that are not enlarged to save memory
COMMAND_DEFAULTS = {"dtype": "bf16", "optimizer": "adamw"}  # options that a command can leave out


@dataclass(frozen=True, slots=True, kw_only=True)
class FixResult:
    """The proposals, and the plan that passed, if one did."""

    proposals: tuple[Proposal, ...]
    plan: Plan | None


def fix(
    plan: Plan, verdict: Verdict, options: CompileOptions, max_proposals: int = MAX_PROPOSALS
) -> FixResult:
    """Propose plans until one passes its check.

    Args:
        verdict: the failed verdict of `plan`.
        max_proposals: the largest number of proposals to compile.

    Raises:
        As `shardwise.check`.
    """
    case = rebuild(plan)
    # The remat policy that the user requested may be the reason why the plan does not fit.
    case = replace(case, job=replace(case.job, remat="auto"))
    layouts = [case.layout]
    proposals = []
    memory_ratio = _memory_ratio(plan, verdict)
    for _ in range(max_proposals):
        layout = _with_loss_chunks(case, memory_ratio, layouts)
        layout = layout or _fastest(case, memory_ratio, layouts)
        if layout is None:
            break
        layouts.append(layout)
        candidate = evaluate(case.model, case.system, case.job, layout, peak=case.peak)
        verdict = check_plan(candidate, options)
        proposals.append(_proposal(case.layout, layout, candidate, verdict))
        if verdict.passed:
            return FixResult(proposals=tuple(proposals), plan=candidate)
        memory_ratio = max(memory_ratio, _memory_ratio(candidate, verdict))
    return FixResult(proposals=tuple(proposals), plan=None)


def _memory_ratio(plan: Plan, verdict: Verdict) -> float:
    """Ratio of compiled to planned memory, at least 1."""
    return max(1.0, (verdict.compiled_peak_bytes or 0) / plan.memory.total)


def _with_loss_chunks(case: Case, memory_ratio: float, rejected: list[Layout]) -> Layout | None:
    """The same layout with the fewest loss chunks with which it fits; None if none suffice."""
    for n_chunks in rank.LOSS_CHUNKS:
        layout = replace(case.layout, loss_chunks=n_chunks)
        if n_chunks <= case.layout.loss_chunks or layout in rejected:
            continue
        if not chunk_problems(layout, case.job.seq):
            memory = replace(case, layout=layout).evaluate().memory
            if float(memory.total) * memory_ratio <= memory.capacity:
                return layout
    return None


def _fastest(case: Case, memory_ratio: float, rejected: list[Layout]) -> Layout | None:
    """The fastest layout that fits and was not rejected: on the same mesh, else on any mesh."""
    system = scaled(case.system, {"hbm": 1 / memory_ratio})
    sizes = case.layout.sizes
    max_sizes = {role: sizes[role] for role in UNCHANGED_ROLES} | dict(case.fixed.max_sizes)
    user_options = {name: value for name, value in case.fixed.items() if name != "remat"}
    for fixed in (fixed_of(sizes, max_sizes), fixed_of(user_options, max_sizes)):
        try:
            ranking = rank.rank(case.model, system, case.job, case.cal, fixed)
        except NoPlan:
            continue
        for candidate in ranking.candidates:
            if candidate.fits and candidate.layout not in rejected:
                return candidate.layout
    return None


def _proposal(before: Layout, after: Layout, plan: Plan, verdict: Verdict) -> Proposal:
    return Proposal(
        change=describe_change(before, after),
        command=plan_command(plan),
        planned_bytes=plan.memory.total,
        compiled_bytes=verdict.compiled_peak_bytes,
        step_s=plan.step,
        verdict=verdict.verdict,
    )


def describe_change(before: Layout, after: Layout) -> str:
    """The new and old options of two layouts: `remat full for none, n_microbatches 2 for 1`."""
    before_options = _layout_options(before)
    changes = []
    for name, value in _layout_options(after).items():
        if value != before_options[name]:
            changes.append(f"{name} {value} for {before_options[name]}")
    return ", ".join(changes) or "unchanged"


def _layout_options(layout: Layout) -> dict[str, int | str]:
    return {
        **layout.sizes,
        "remat": layout.policy,
        "n_microbatches": layout.n_microbatches,
        "zero": layout.zero,
        "schedule": layout.schedule,
        "loss_chunks": layout.loss_chunks,
    }


def plan_command(plan: Plan) -> str:
    """The command line that makes the same plan."""
    strategy = plan.strategy
    workload = plan.workload
    mesh: dict[str, int | str] = {role: n for role, n in strategy.mesh.items() if n > 1}
    mesh = mesh or {"data": 1}
    mesh |= {"zero": strategy.zero, "micro_batch": strategy.micro_batch}
    if strategy.is_pipelined:
        mesh |= {"schedule": strategy.schedule, "virtual": strategy.virtual}
    if strategy.loss_chunks > 1:
        mesh["loss_chunks"] = strategy.loss_chunks
    mesh_text = ",".join(f"{name}={value}" for name, value in mesh.items())
    precision = strategy.precision
    options = {
        "remat": strategy.remat,
        "dtype": precision["compute"] or "bf16",
        "optimizer": workload.optimizer,
        "reduce": precision["reduce"],
        "offload": ",".join(strategy.offload),
    }
    if precision["reduce"] == precision["gradients"]:
        options["reduce"] = ""
    words = ["shardwise plan", plan.model.name, plan.hardware.name]
    words.append(f"--train --batch {workload.batch}x{workload.seq} --mesh {mesh_text}")
    for name, option in options.items():
        if option and option != COMMAND_DEFAULTS.get(name):
            words.append(f"--{name} {option}")
    return " ".join(words)
