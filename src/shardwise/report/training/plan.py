"""A training plan on one screen: split, step time, what takes the time, reasons, alternatives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardwise import units
from shardwise.plan import Plan
from shardwise.plan.schema.training import PlannedGoodput
from shardwise.plan.schema.training_reasons import TensorSplit
from shardwise.report.style import Block, bar, labelled, quiet, rows_below, strong, table
from shardwise.report.training.details import details
from shardwise.report.training.reasons import loss_text, reason_text
from shardwise.report.words import (
    bound_name,
    chips,
    counted,
    duration,
    mesh_text,
    percent,
    seconds_span,
)
from shardwise.workload import OPTIMIZER_MOMENTS

MAX_ALTERNATIVES = 1
MAX_REASONS = 4  # without -v
SMALL_TRAFFIC = 0.01  # of the longest bar; less traffic has no bar without -v
SMALL_HBM = 0.1  # of T_math; less HBM-bound work has no bar without -v


def blocks(plan: Plan, *, verbose: bool = False, saved: str | None = None) -> Iterator[Block]:
    """The whole answer; `verbose` adds placement, rules, memory and operations."""
    yield strong(headline(plan))
    yield labelled(_times(plan))
    yield table(["", ">", "", ""], _bars(plan, verbose))
    yield labelled(
        [
            ("state", _state(plan)),
            *rows_below("why", _reasons(plan, verbose)),
            *rows_below("next", _alternatives(plan)),
        ]
    )
    if verbose:
        yield from details(plan)
    if saved:
        yield f"saved {saved}"
    else:
        yield quiet("type  -o plan.json to save the plan  ·  -v for its tables")


def headline(plan: Plan) -> str:
    """The bound of the step, the split, and the tokens of one step."""
    memory = plan.memory
    work = plan.workload
    memory_ratio = memory.total / (memory.capacity - memory.margin)
    text = f"Does not fit: ×{memory_ratio:.2f} of the memory. " if memory_ratio > 1 else ""
    return (
        f"{text}{bound_name(plan.estimate.bound)}-bound. "
        f"{mesh_text(plan.strategy.mesh)}{strategy_text(plan)} on {chips(plan.hardware.n_chips)}. "
        f"One step = {units.show_count(work.tokens_per_step)} tokens "
        f"({work.batch:,} sequences × {work.seq:,})."
    )


def strategy_text(plan: Plan) -> str:
    """Parts of the strategy other than its mesh: ` (interleaved ×8, ZeRO-1)`."""
    strategy = plan.strategy
    parts = []
    if strategy.is_pipelined:
        chunks = f" ×{strategy.virtual}" if strategy.virtual > 1 else ""
        parts.append(f"{strategy.schedule}{chunks}")
    if strategy.zero in (1, 2):
        parts.append(f"ZeRO-{strategy.zero}")
    if strategy.mesh["context"] > 1 and strategy.context_kind != "gather":
        parts.append(f"{strategy.context_kind} context")
    if strategy.loss_chunks > 1:
        parts.append(f"loss in {strategy.loss_chunks} chunks")
    return f" ({', '.join(parts)})" if parts else ""


def ranked(plans: Sequence[Plan]) -> Block:
    """One line per plan, best first."""
    rows = []
    for rank, plan in enumerate(plans, 1):
        row = [
            f"{rank}",
            mesh_text(plan.strategy.mesh) + strategy_text(plan),
            seconds_span(plan.step.lower, plan.step.upper),
            duration(plan.step.expected),
            units.show_gib(plan.memory.total),
        ]
        rows.append(row)
    return table([">", "mesh", "step", ">expected", ">HBM"], rows)


def _times(plan: Plan) -> Iterator[tuple[str, str]]:
    estimate = plan.estimate
    step = plan.step
    at_mfu = estimate.at_mfu
    bounds = seconds_span(step.lower, step.upper)
    yield "step", f"{bounds} (roofline, all communication hidden / none)"
    yield (
        "expected",
        f"{duration(step.expected)}{_spread(plan)}, MFU {percent(estimate.mfu)}"
        + _run(estimate.run_s, estimate.chip_hours, estimate.usd)
        + _price(plan)
        + f" ({_source(plan)})",
    )
    if estimate.goodput:
        yield "failures", _failures(estimate.goodput)
    yield (
        "book",
        f"at {percent(at_mfu.mfu)} MFU: step {duration(at_mfu.step_s)}"
        + _run(at_mfu.run_s, at_mfu.chip_hours, at_mfu.usd),
    )


def _failures(planned: PlannedGoodput) -> str:
    """The goodput and what it assumes of failures, checkpoints and restarts."""
    host_rate = units.show_rate(planned.storage_bytes_per_s / planned.n_hosts, "B/s", 1)
    text = (
        f"goodput {100 * planned.goodput:.1f} %, one failure in "
        f"{duration(planned.mtbf_of_run_s)}: a "
        f"checkpoint every {duration(planned.interval_s)} takes {duration(planned.write_s)} "
        f"({units.show_bytes(planned.checkpoint_bytes)} from {counted(planned.n_hosts, 'host')}, "
        f"{host_rate} each, assumed), a restart {duration(planned.restart_s)}"
    )
    if planned.run_s:
        text += f"; {duration(planned.run_s)}"
    if planned.usd:
        text += f", {units.show_dollars(planned.usd)}"
    return text


def _spread(plan: Plan) -> str:
    rates = plan.estimate.rates
    return "" if rates.name == "peak" else f" ±{percent(rates.spread)}"


def _source(plan: Plan) -> str:
    """The source of the rates behind `expected`."""
    rates = plan.estimate.rates
    if rates.name == "peak":
        return "peak rates"
    return f"rates of {rates.name} runs, {rates.as_of}"


def _run(run_s: float | None, chip_hours: float | None, usd: float | None) -> str:
    """Time, chip-hours and price of the run; empty where its tokens are not known."""
    if run_s is None or chip_hours is None:
        return ""
    price = "no public price" if usd is None else units.show_dollars(usd)
    return f", {duration(run_s)}, {units.show_count(chip_hours)} chip-hours, {price}"


def _price(plan: Plan) -> str:
    price = plan.hardware.figures.get("price.chip_hour")
    if price is None or plan.estimate.usd is None:
        return ""
    return f" at {units.show_dollars(price)}"


def _bars(plan: Plan, verbose: bool) -> Iterator[list[str]]:
    estimate = plan.estimate
    overlaps = {op.role: op.hidden for op in plan.operations if op.role}
    longest_s = max(estimate.compute_s, estimate.hbm_s, *estimate.comm_s.values(), 0.0)

    def time_bar(name: str, seconds: float, note: str) -> list[str]:
        return [f"  {name}", duration(seconds), bar(seconds, longest_s), note]

    yield time_bar("T_math", estimate.compute_s, "bars are times at peak rates")
    hbm_bound_s = sum(max(op.hbm_s - op.math_s, 0.0) for op in plan.operations)
    if verbose or estimate.bound == "hbm" or hbm_bound_s > SMALL_HBM * estimate.compute_s:
        yield time_bar("T_hbm", estimate.hbm_s, "")
    for role, seconds in sorted(estimate.comm_s.items(), key=lambda item: -item[1]):
        if seconds < SMALL_TRAFFIC * longest_s and not verbose:
            continue
        note = "overlaps with compute" if overlaps.get(role) else "exposed"
        yield time_bar(role, seconds, note)
    memory = plan.memory
    strategy = plan.strategy
    note = f"of {units.show_gib(memory.capacity)}, remat {strategy.remat}"
    if strategy.n_microbatches > 1:
        note += f", {strategy.n_microbatches:,} microbatches"
    yield ["  memory", units.show_gib(memory.total), bar(memory.total, memory.capacity), note]


def _state(plan: Plan) -> str:
    """Dtypes of the training state, and its bytes per parameter."""
    job = plan.job
    dtypes = {"weights": job.weights, "master": job.master, "gradients": job.gradients}
    if OPTIMIZER_MOMENTS[job.optimizer]:
        dtypes[f"{job.optimizer} moments"] = job.moments
    names_by_dtype: dict[str, list[str]] = {}
    for name, dtype in dtypes.items():
        if dtype:
            names_by_dtype.setdefault(dtype, []).append(name)
    parts = [f"{dtype} {', '.join(names)}" for dtype, names in names_by_dtype.items()]
    scope = " of a matrix" if job.optimizer in ("adafactor", "muon") else ""
    return f"{'; '.join(parts)}: {plan.estimate.state_bytes_per_parameter:g} B a parameter{scope}"


def _reasons(plan: Plan, verbose: bool) -> Iterator[str]:
    """Reasons without the memory's (its bar shows it); the book's threshold yields to others."""
    reasons = [reason for reason in plan.why if reason.constraint != "memory"]
    crowded = len(reasons) > MAX_REASONS and not verbose
    for reason in reasons:
        if not (crowded and reason.constraint == "tokens_per_chip"):
            yield reason_text(reason)


def _alternatives(plan: Plan) -> Iterator[str]:
    """The best splits with other tensor sizes, except those that a reason mentions."""
    mentioned = [reason.mesh for reason in plan.why if isinstance(reason, TensorSplit)]
    for other in plan.alternatives[:MAX_ALTERNATIVES]:
        if other.mesh not in mentioned:
            yield (
                f"{mesh_text(other.mesh)}: expected {duration(other.step_s.expected)}, "
                f"{loss_text(other.loses_on)}"
            )
