"""Plans in the place of one that failed its check, each proved by the compiler in its turn.

Where fewer logits at once are enough, nothing else changes: chunks of the loss cost least. Else the
search proposes: the fastest plan on the same mesh whose planned memory, times the ratio of compiled
to planned that was seen so far, is what a device has; where there is none, the fastest on any mesh.
Remat, microbatches, the stage of ZeRO and sizes of axes all come from there.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from shardwise.check.training import How, check_plan
from shardwise.check.verdict import Proposal, Verdict
from shardwise.errors import NoPlan
from shardwise.hardware.chip import with_values
from shardwise.plan.schema.training import Plan
from shardwise.plan.training.build import evaluate
from shardwise.plan.training.rebuild import rebuild
from shardwise.search.given import fixed_of
from shardwise.search.training import rank
from shardwise.search.training.legal import chunk_problems
from shardwise.search.training.problem import Case
from shardwise.strategy.layout import Layout

TRIES = 3  # proposals that are compiled
STRANGE = ("context", "expert", "pipe")  # roles that are not brought in to save memory
DEFAULTS = {"dtype": "bf16", "optimizer": "adamw"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fixed:
    """What was proposed, and the plan that passed, if one did."""

    proposals: tuple[Proposal, ...]
    plan: Plan | None


def fix(plan: Plan, failed: Verdict, how: How, tries: int = TRIES) -> Fixed:
    """Propose plans until one passes its check.

    Args:
        failed: the verdict of `plan`.
        tries: how many are compiled at most.

    Raises:
        As `shardwise.check`.
    """
    case = rebuild(plan)
    # What a policy was asked for by its name is what may be at fault.
    case = replace(case, job=replace(case.job, remat="auto"))
    seen, told = [case.layout], []
    ratio = _ratio(plan, failed)
    for _ in range(tries):
        layout = _chunked(case, ratio, seen) or _next(case, ratio, seen)
        if layout is None:
            break
        seen.append(layout)
        tried = evaluate(case.model, case.system, case.job, layout, peak=case.peak)
        verdict = check_plan(tried, how)
        told.append(_proposal(case.layout, layout, tried, verdict))
        if verdict.passed:
            return Fixed(proposals=tuple(told), plan=tried)
        ratio = max(ratio, _ratio(tried, verdict))
    return Fixed(proposals=tuple(told), plan=None)


def _ratio(plan: Plan, verdict: Verdict) -> float:
    """Compiled over planned memory, 1 at least."""
    peak = verdict.compiled.peak_bytes if verdict.compiled else None
    return max(1.0, peak / plan.memory.total) if peak else 1.0


def _chunked(case: Case, ratio: float, seen: list[Layout]) -> Layout | None:
    """The same layout with the fewest chunks of the loss that are enough."""
    for n in rank.LOSS_CHUNKS:
        layout = replace(case.layout, loss_chunks=n)
        if n <= case.layout.loss_chunks or layout in seen or chunk_problems(layout, case.job.seq):
            continue
        memory = replace(case, layout=layout).evaluate().memory
        if float(memory.total) * ratio <= memory.capacity:
            return layout
    return None


def _next(case: Case, ratio: float, seen: list[Layout]) -> Layout | None:
    """The fastest layout that has not been tried: on the same mesh, else on any."""
    capacity = case.system.chip.need("hbm_bytes")
    chip = with_values(case.system.chip, {"hbm.capacity": capacity / ratio})
    system = replace(case.system, chip=chip)
    sizes = case.layout.sizes
    max_sizes = {role: sizes[role] for role in STRANGE} | dict(case.fixed.max_sizes)
    free = {name: value for name, value in case.fixed.items() if name != "remat"}
    for fixed in (fixed_of(sizes, max_sizes), fixed_of(free, max_sizes)):
        try:
            ranked = rank.rank(case.model, system, case.job, case.cal, fixed).candidates
        except NoPlan:
            continue
        new = [c.layout for c in ranked if c.fits and c.layout not in seen]
        if new:
            return new[0]
    return None


def _proposal(old: Layout, new: Layout, plan: Plan, verdict: Verdict) -> Proposal:
    return Proposal(
        change=change(old, new),
        command=command(plan),
        planned_bytes=plan.memory.total,
        compiled_bytes=verdict.compiled.peak_bytes if verdict.compiled else None,
        step_s=plan.step,
        verdict=verdict.verdict,
    )


def change(old: Layout, new: Layout) -> str:
    """What one layout does otherwise: `remat full for none, n_microbatches 2 for 1`."""
    pairs: list[tuple[str, int | str, int | str]] = [
        (role, new.sizes[role], old.sizes[role]) for role in new.sizes
    ]
    pairs += [
        ("remat", new.policy, old.policy),
        ("n_microbatches", new.n_microbatches, old.n_microbatches),
        ("zero", new.zero, old.zero),
        ("schedule", new.schedule, old.schedule),
        ("loss_chunks", new.loss_chunks, old.loss_chunks),
    ]
    return ", ".join(f"{name} {b} for {a}" for name, b, a in pairs if a != b) or "as it was"


def command(plan: Plan) -> str:
    """The line that makes this plan again."""
    strategy, work = plan.strategy, plan.workload
    split = {role: n for role, n in strategy.mesh.items() if n > 1} or {"data": 1}
    words: dict[str, int | str] = {
        **split,
        "zero": strategy.zero,
        "micro_batch": strategy.micro_batch,
    }
    if strategy.is_pipelined:
        words |= {"schedule": strategy.schedule, "virtual": strategy.virtual}
    if strategy.loss_chunks > 1:
        words["loss_chunks"] = strategy.loss_chunks
    mesh = ",".join(f"{name}={value}" for name, value in words.items())
    held = strategy.precision
    options = {
        "remat": strategy.remat,
        "dtype": held["compute"] or "bf16",
        "optimizer": work.optimizer,
        "reduce": "" if held["reduce"] == held["gradients"] else held["reduce"] or "",
        "offload": ",".join(strategy.offload),
    }
    told = [f"--{n} {v}" for n, v in options.items() if v and v != DEFAULTS.get(n)]
    name = plan.model.name
    work_of = f"--train --batch {work.batch}x{work.seq} --mesh {mesh}"
    return " ".join(["shardwise plan", name, plan.hardware.name, work_of, *told])
