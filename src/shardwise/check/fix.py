"""Alternatives to a plan that does not fit, each checked by the compiler in turn.

If it is enough to compute the loss in chunks (smaller logits), nothing else changes, since that
costs the least time. Otherwise the planner searches for the fastest plan that fits on the same
mesh; if there is none, on any mesh. In this search, the planned memory of every plan, over the
devices of its chips, is multiplied by the largest ratio of compiled to planned memory that has been
seen so far.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from shardwise.check.device_view import plan_over_devices
from shardwise.check.options import CompileOptions
from shardwise.check.training import check_plan
from shardwise.check.verdict import Proposal, Verdict
from shardwise.errors import BadInput, NoAnswer, NoPlan, NotDivisible
from shardwise.estimate.calibration import PEAK
from shardwise.hardware.scale import scaled
from shardwise.plan.schema.training import Plan
from shardwise.plan.training.build import evaluate
from shardwise.plan.training.rebuild import rebuild
from shardwise.search.given import Fixed, fixed_of
from shardwise.search.training import rank
from shardwise.search.training.legal import chunk_problems
from shardwise.search.training.problem import Case
from shardwise.strategy.layout import Layout
from shardwise.vocabulary import REMAT_WORDS
from shardwise.workload import Train, state_dtypes

MAX_PROPOSALS = 3  # default number of proposals
MAX_SEARCHES = 5  # searches with less and less memory, for chips of two devices
UNCHANGED_ROLES = ("context", "expert", "pipe")  # mesh roles that are not enlarged to save memory
COMMAND_DEFAULTS = {"dtype": "bf16", "optimizer": "adamw"}  # options that a command can leave out


@dataclass(frozen=True, slots=True, kw_only=True)
class FixResult:
    """The proposals, and the plan that fits, if one does."""

    proposals: tuple[Proposal, ...]
    plan: Plan | None


def fix(
    plan: Plan, verdict: Verdict, options: CompileOptions, max_proposals: int = MAX_PROPOSALS
) -> FixResult:
    """Propose plans until one fits, or the compiler gives no answer.

    Args:
        verdict: the verdict on `plan`, which does not fit.
        max_proposals: the largest number of proposals to compile.
    """
    case = rebuild(plan)
    # The remat policy that the user requested may be the reason why the plan does not fit.
    case = replace(case, job=replace(case.job, remat="auto"))
    # What fills the memory of a proposal is not shown, so it is compiled only once.
    options = replace(options, explain=False)
    layouts = [case.layout]
    proposals: list[Proposal] = []
    memory_ratio = _memory_ratio(verdict)
    for _ in range(max_proposals):
        layout = _with_loss_chunks(case, memory_ratio, layouts)
        layout = layout or _fastest(case, memory_ratio, layouts)
        if layout is None:
            break
        layouts.append(layout)
        candidate = evaluate(case.model, case.system, case.job, layout, peak=case.peak)
        proposal = _proposal(case.layout, candidate)
        try:
            verdict = check_plan(candidate, options)
        except (BadInput, NoAnswer) as error:
            outcome = "no answer" if isinstance(error, NoAnswer) else "refused"
            proposals.append(replace(proposal, verdict=outcome, note=error.problems[0]))
            if outcome == "no answer":
                break
            continue
        proposals.append(
            replace(proposal, verdict=verdict.verdict, compiled_bytes=verdict.required_bytes)
        )
        if proposals[-1].fits:
            return FixResult(proposals=tuple(proposals), plan=candidate)
        memory_ratio = max(memory_ratio, _memory_ratio(verdict))
    return FixResult(proposals=tuple(proposals), plan=None)


def _memory_ratio(verdict: Verdict) -> float:
    """Ratio of compiled to planned memory, at least 1."""
    return max(1.0, (verdict.required_bytes or 0.0) / verdict.planned.peak_bytes)


def _memory_share(case: Case, layout: Layout) -> float:
    """Planned share of a chip's memory over the devices of the chip; infinite if not legal."""
    plan = evaluate(case.model, case.system, case.job, layout, peak=case.peak)
    try:
        memory = plan_over_devices(plan)[0].memory
    except NotDivisible:
        return math.inf
    return memory.total / memory.capacity


def _with_loss_chunks(case: Case, memory_ratio: float, rejected: list[Layout]) -> Layout | None:
    """The same layout with the fewest loss chunks with which it fits; None if none suffice."""
    for n_chunks in rank.LOSS_CHUNKS:
        layout = replace(case.layout, loss_chunks=n_chunks)
        if n_chunks <= case.layout.loss_chunks or layout in rejected:
            continue
        if chunk_problems(layout, case.job.seq):
            continue
        if _memory_share(case, layout) * memory_ratio <= 1:
            return layout
    return None


def _fastest(case: Case, memory_ratio: float, rejected: list[Layout]) -> Layout | None:
    """The fastest layout that fits and was not rejected: on the same mesh, else on any mesh."""
    sizes = case.layout.sizes
    max_sizes = {role: sizes[role] for role in UNCHANGED_ROLES} | dict(case.fixed.max_sizes)
    user_options = {name: value for name, value in case.fixed.items() if name != "remat"}
    for fixed in (fixed_of(sizes, max_sizes), fixed_of(user_options, max_sizes)):
        layout = _fastest_of(case, fixed, memory_ratio, rejected)
        if layout is not None:
            return layout
    return None


def _fastest_of(
    case: Case, fixed: Fixed, memory_ratio: float, rejected: list[Layout]
) -> Layout | None:
    """The fastest layout of a search that fits over the devices of its chips.

    The search counts chips. Where a chip is two devices, which hold some arrays twice, it is
    repeated with less memory until what it finds fits.
    """
    allowed = 1 / memory_ratio
    for _ in range(MAX_SEARCHES):
        system = scaled(case.system, {"hbm": allowed})
        try:
            candidates = rank.rank(case.model, system, case.job, case.cal, fixed).candidates
        except NoPlan:
            return None
        layouts = [c.layout for c in candidates if c.fits and c.layout not in rejected]
        if not layouts:
            return None
        needed = [_memory_share(case, layout) * memory_ratio for layout in layouts]
        for layout, share in zip(layouts, needed, strict=True):
            if share <= 1:
                return layout
        if math.isinf(min(needed)):
            return None
        allowed /= min(needed)
    return None


def _proposal(before: Layout, plan: Plan) -> Proposal:
    """A proposal that was not checked yet."""
    return Proposal(
        change=describe_change(before, plan.layout),
        command=plan_command(plan),
        planned_bytes=plan_over_devices(plan)[0].memory.total,
        compiled_bytes=None,
        step_s=plan.step,
        verdict="",
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
        "context_kind": layout.context_kind,
        "loss_chunks": layout.loss_chunks,
    }


def plan_command(plan: Plan) -> str:
    """The command line that makes the same plan; "" if its options cannot express the plan."""
    job = plan.job
    layout = plan.layout
    # What `shardwise plan` assumes for the parts of a job that have no option.
    dtypes = state_dtypes(job.precision or "", job.compute, check=False)
    expressible = Train(
        batch=job.batch,
        seq=job.seq,
        tokens=job.tokens,
        **dtypes,  # type: ignore[arg-type]
        compute=job.compute,
        optimizer=job.optimizer,
        remat=job.remat,
        reduce=job.reduce,
        overlap=job.overlap,
        offload=job.offload,
    )
    is_whole = layout.remat_layers is None and layout.offload_layers is None
    if job != expressible or not is_whole or layout.policy not in REMAT_WORDS:
        return ""
    mesh: dict[str, int | str | None] = {role: n for role, n in layout.sizes.items() if n > 1}
    mesh = mesh or {"data": 1}
    mesh |= {"zero": layout.zero, "micro_batch": layout.micro_batch}
    if layout.is_pipelined:
        mesh |= {"schedule": layout.schedule, "virtual": layout.virtual}
    if layout.mesh.context > 1:
        mesh["context_kind"] = layout.context_kind
    if layout.loss_chunks > 1:
        mesh["loss_chunks"] = layout.loss_chunks
    mesh["expert_tensor"] = layout.expert_tensor
    options = {
        "tokens": f"{job.tokens:.0f}" if job.tokens else "",
        "mesh": ",".join(f"{name}={value}" for name, value in mesh.items() if value is not None),
        "remat": layout.policy,
        "dtype": job.compute,
        "optimizer": job.optimizer,
        "reduce": job.reduce,
        "overlap": ",".join(job.overlap),
        "offload": ",".join(job.offload),
    }
    if job.precision and dtypes != state_dtypes("", job.compute):
        options["precision"] = job.precision
    words = ["shardwise plan", plan.model.name, plan.hardware.name]
    words.append(f"--train --batch {job.batch}x{job.seq}")
    for name, option in options.items():
        if option and option != COMMAND_DEFAULTS.get(name):
            words.append(f"--{name} {option}")
    if plan.estimate.rates.name == PEAK.name:
        words.append("--peak")
    return " ".join(words)
