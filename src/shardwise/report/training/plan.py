"""A plan on one screen: the answer, its range, what takes the time, why, and what is next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardwise import units
from shardwise.plan import Plan
from shardwise.plan.schema.training import PlannedGoodput
from shardwise.plan.schema.training_reasons import TensorSplit
from shardwise.report.style import Block, bar, labelled, quiet, strong, table
from shardwise.report.training.details import details
from shardwise.report.training.reasons import loss_text, reason_text
from shardwise.report.words import chips, mesh_text, percent, seconds_span
from shardwise.workload import OPTIMIZER_MOMENTS

SHOWN_ALTERNATIVES = 2
SHOWN_REASONS = 4  # and all under -v
SMALL = 0.01  # traffic below this share of the longest bar has none
SHOWN_HBM = 0.1  # HBM-bound work is shown from this share of T_math on


def blocks(plan: Plan, *, verbose: bool = False, saved: str | None = None) -> Iterator[Block]:
    """The whole answer; `verbose` adds placement, rules, memory and operations."""
    yield strong(headline(plan))
    yield labelled(_times(plan))
    yield table(["", ">", "", ""], _bars(plan, verbose))
    yield labelled([("state", _state(plan)), *_reasons(plan, verbose), *_alternatives(plan)])
    if verbose:
        yield from details(plan)
    yield (
        f"saved {saved}" if saved else quiet("type  -o plan.json keeps it  ·  -v shows its tables")
    )


def headline(plan: Plan) -> str:
    """What binds, the split, and how many tokens one step is."""
    memory, work = plan.memory, plan.workload
    over = memory.total / (memory.capacity - memory.margin)
    bound = {"hbm": "HBM"}.get(plan.estimate.bound, plan.estimate.bound.capitalize())
    return (
        f"{f'Does not fit: ×{over:.2f} of the memory. ' if over > 1 else ''}{bound}-bound. "
        f"{mesh_text(plan.strategy.mesh)}{words(plan)} on {chips(plan.hardware.n_chips)}. "
        f"One step = {units.show_count(work.tokens_per_step)} tokens "
        f"({work.batch:,} sequences × {work.seq:,})."
    )


def words(plan: Plan) -> str:
    """What of the strategy is not in its mesh: ` (interleaved ×8, ZeRO-1)`."""
    strategy, found = plan.strategy, []
    if strategy.is_pipelined:
        chunks = f" ×{strategy.virtual}" if strategy.virtual > 1 else ""
        found.append(f"{strategy.schedule}{chunks}")
    if strategy.zero in (1, 2):
        found.append(f"ZeRO-{strategy.zero}")
    if strategy.mesh["context"] > 1 and strategy.context_kind != "gather":
        found.append(f"{strategy.context_kind} context")
    if strategy.loss_chunks > 1:
        found.append(f"loss in {strategy.loss_chunks} chunks")
    return f" ({', '.join(found)})" if found else ""


def ranked(plans: Sequence[Plan]) -> Block:
    """One line for each of several plans, best first."""
    rows = [
        [
            f"{place}",
            mesh_text(plan.strategy.mesh) + words(plan),
            seconds_span(plan.step.lower, plan.step.upper),
            units.show_seconds(plan.step.expected),
            units.show_gib(plan.memory.total),
        ]
        for place, plan in enumerate(plans, 1)
    ]
    return table([">", "mesh", "step", ">expected", ">HBM"], rows)


def _times(plan: Plan) -> Iterator[tuple[str, str]]:
    estimate, step, at = plan.estimate, plan.step, plan.estimate.at_mfu
    yield (
        "step",
        f"{seconds_span(step.lower, step.upper)} (roofline, all communication hidden / none)",
    )
    yield (
        "expected",
        f"{units.show_seconds(step.expected)}{_spread(plan)}, MFU {percent(estimate.mfu)}"
        + _run(estimate.run_s, estimate.chip_hours, estimate.usd)
        + _price(plan)
        + f" ({_source(plan)})",
    )
    if estimate.goodput:
        yield "failures", _failures(estimate.goodput)
    yield (
        "book",
        f"at its {percent(at.mfu)} MFU: step {units.show_seconds(at.step_s)}"
        + _run(at.run_s, at.chip_hours, at.usd),
    )


def _failures(told: PlannedGoodput) -> str:
    """The goodput with what it rests on."""
    seconds = units.show_seconds
    each = units.show_rate(told.storage_bytes_per_s / told.n_hosts, "B/s", 1)
    hosts = f"{told.n_hosts:,} host{'s' if told.n_hosts > 1 else ''}"
    text = (
        f"goodput {100 * told.goodput:.1f} %, one failure in {seconds(told.mtbf_of_run_s)}: a "
        f"checkpoint every {seconds(told.interval_s)} takes {seconds(told.write_s)} "
        f"({units.show_bytes(told.checkpoint_bytes)} from {hosts}, {each} each, assumed), "
        f"a restart {seconds(told.restart_s)}"
    )
    text += f"; {seconds(told.run_s)}" if told.run_s else ""
    return text + (f", {units.show_dollars(told.usd)}" if told.usd else "")


def _spread(plan: Plan) -> str:
    rates = plan.estimate.rates
    return f" ±{percent(rates.spread)}" if rates.name != "peak" else ""


def _source(plan: Plan) -> str:
    """Where the rates behind `expected` are from."""
    rates = plan.estimate.rates
    if rates.name == "peak":
        return "peak rates"
    return f"rates of {rates.name} runs, {rates.as_of}"


def _run(run_s: float | None, chip_hours: float | None, usd: float | None) -> str:
    """The rest of the run after its step, or nothing when the tokens were not given."""
    if run_s is None or chip_hours is None:
        return ""
    money = f", {units.show_dollars(usd)}" if usd is not None else ", no public price"
    return f", {units.show_seconds(run_s)}, {units.show_count(chip_hours)} chip-hours{money}"


def _price(plan: Plan) -> str:
    price = plan.hardware.figures.get("price.chip_hour")
    money = plan.estimate.usd
    return f" at {units.show_dollars(price)}" if price is not None and money is not None else ""


def _bars(plan: Plan, verbose: bool) -> Iterator[list[str]]:
    estimate = plan.estimate
    hidden = {op.role: op.hidden for op in plan.operations if op.role}
    full = max(estimate.compute_s, estimate.hbm_s, *estimate.comm_s.values(), 0.0)
    math, told = units.show_seconds(estimate.compute_s), "times of bars are at peak rates"
    yield ["  T_math", math, bar(estimate.compute_s, full), told]
    slow = sum(max(op.hbm_s - op.math_s, 0.0) for op in plan.operations)
    if verbose or estimate.bound == "hbm" or slow > SHOWN_HBM * estimate.compute_s:
        yield ["  T_hbm", units.show_seconds(estimate.hbm_s), bar(estimate.hbm_s, full), ""]
    for role, seconds in sorted(estimate.comm_s.items(), key=lambda pair: -pair[1]):
        if seconds < SMALL * full and not verbose:
            continue
        kind = "beside the math" if hidden.get(role) else "waited for"
        yield [f"  {role}", units.show_seconds(seconds), bar(seconds, full), kind]
    memory = plan.memory
    strategy = plan.strategy
    share = f"of {units.show_gib(memory.capacity)}, remat {strategy.remat}"
    if strategy.n_microbatches > 1:
        share += f", cut in {strategy.n_microbatches:,}"
    yield ["  memory", units.show_gib(memory.total), bar(memory.total, memory.capacity), share]


def _state(plan: Plan) -> str:
    """The dtypes of what is held of a parameter, and its bytes."""
    job = plan.job
    moments = f"{job.optimizer} moments" if OPTIMIZER_MOMENTS[job.optimizer] else ""
    parts = {"weights": job.weights, "master": job.master, "gradients": job.gradients}
    names: dict[str, list[str]] = {}
    for name, dtype in (parts | {moments: job.moments}).items():
        if name and dtype:
            names.setdefault(dtype, []).append(name)
    text = "; ".join(f"{dtype} {', '.join(of)}" for dtype, of in names.items())
    kind = " of a matrix" if job.optimizer in ("adafactor", "muon") else ""
    return f"{text}: {plan.estimate.state_bytes_per_parameter:g} B a parameter{kind}"


def _reasons(plan: Plan, verbose: bool) -> Iterator[tuple[str, str]]:
    """Not that of the memory, which its bar tells; of many, not the threshold of the book."""
    told = [r for r in plan.why if r.constraint != "memory"]
    if len(told) > SHOWN_REASONS and not verbose:
        told = [r for r in told if r.constraint != "tokens_per_chip"]
    for i, reason in enumerate(told):
        yield "" if i else "why", reason_text(reason)


def _alternatives(plan: Plan) -> Iterator[tuple[str, str]]:
    """The best of other tensor sizes, but the one that a reason tells of."""
    told = [reason.mesh for reason in plan.why if isinstance(reason, TensorSplit)]
    others = plan.alternatives[:SHOWN_ALTERNATIVES]
    for i, other in enumerate(o for o in others if o.mesh not in told):
        yield (
            "" if i else "next",
            f"{mesh_text(other.mesh)}: expected {units.show_seconds(other.step_s.expected)}, "
            f"{loss_text(other.loses_on)}",
        )
