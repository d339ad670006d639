"""A training plan on one screen: split, step time and its parts, reasons, alternatives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardwise import units
from shardwise.estimate.calibration import MEASURED, PEAK
from shardwise.plan import Plan
from shardwise.plan.schema.training import PlannedGoodput
from shardwise.plan.schema.training_reasons import (
    Bubble,
    MemoryRoom,
    NoPipelines,
    NotInFramework,
    NotTrained,
    TensorSplit,
    TokenPrediction,
    TokensPerChip,
    UsualSettings,
)
from shardwise.plan.training.limit_text import limit_name
from shardwise.report.style import Block, bar, label_first, labelled, quiet, strong, table
from shardwise.report.training.details import details
from shardwise.report.training.reasons import loss_text, reason_text, run_lines
from shardwise.report.words import (
    bound_name,
    chips,
    counted,
    duration,
    listed,
    measured_as,
    mesh_text,
    percent,
    seconds_span,
)
from shardwise.search.training.practice import best_published_mfu
from shardwise.vocabulary import UNKNOWN_FRAMEWORK
from shardwise.workload import OPTIMIZER_MOMENTS

MAX_ALTERNATIVES = 1
LOSES_UPDATES = "Without an fp32 copy, most updates of 16-bit weights are rounded away."
# Limits of the screen without -v:
MAX_REASONS = 4  # with more reasons, some are left out
SMALL_BUBBLE = 0.005  # of the step
PERCENT = 0.01  # difference of MFU that the screen shows
SMALL_TRAFFIC = 0.01  # of the longest time; shorter traffic has no bar
SMALL_HBM = 0.1  # of T_math; T_hbm has no bar if HBM adds less time than that to the arithmetic


def blocks(
    plan: Plan,
    *,
    verbose: bool = False,
    saved: str | None = None,
    any_layout_by: str = "--any-layout admits it",
) -> Iterator[Block]:
    """The whole answer.

    Args:
        verbose: add tables of axis placement, sharding rules, memory and operations.
        saved: the file to which the plan was saved, if any.
        any_layout_by: why layouts that the trainer does not run are planned, if they are.
    """
    yield strong(headline(plan))
    yield labelled(_times(plan))
    yield table(["", ">", "", ""], _bars(plan, verbose))
    yield labelled(
        [
            *_excess(plan),
            *_not_trained(plan, any_layout_by),
            *measured_as(plan.hardware),
            ("state", _state(plan)),
            *run_lines(plan.why),
            *label_first("why", _reasons(plan, verbose)),
            *label_first("next", [*_practice(plan)] or _alternatives(plan)),
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
    refusal = ""
    if memory_ratio > 1:
        refusal = f"Does not fit: ×{memory_ratio:.2f} of the memory. "
    split = f"One chip{strategy_text(plan)}"
    if plan.hardware.n_chips > 1:
        mesh = mesh_text(plan.strategy.mesh)
        split = f"{mesh}{strategy_text(plan)} on {chips(plan.hardware.n_chips)}{_racks(plan)}"
    return (
        f"{refusal}{bound_name(plan.estimate.bound)}-bound. {split}. "
        f"One step = {units.show_count(work.tokens_per_step)} tokens "
        f"({work.batch:,} sequences × {work.seq:,})."
    )


def _racks(plan: Plan) -> str:
    """The part of each rack that is used, if several are and not as a whole: `, 64 per rack`."""
    hardware = plan.hardware
    n_gpus = hardware.gpus_per_node
    if not n_gpus or n_gpus == hardware.n_chips or n_gpus == hardware.figures.get("node.gpus"):
        return ""
    return f", {n_gpus} per rack"


def strategy_text(plan: Plan) -> str:
    """Parts of the strategy other than its mesh: ` (interleaved ×8, ZeRO-1)`."""
    strategy = plan.strategy
    parts = []
    if strategy.is_pipelined:
        schedule = strategy.schedule
        if strategy.virtual > 1:
            schedule += f" ×{strategy.virtual}"
        parts.append(schedule)
    if strategy.zero in (1, 2):
        parts.append(f"ZeRO-{strategy.zero}")
    if strategy.mesh["context"] > 1 and strategy.context_kind != "gather":
        parts.append(f"{strategy.context_kind} context")
    if strategy.loss_chunks > 1:
        parts.append(f"loss in {strategy.loss_chunks} chunks")
    if not parts:
        return ""
    return f" ({', '.join(parts)})"


def ranked(plans: Sequence[Plan]) -> Block:
    """A table with one line per plan, best first."""
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
    """Labels and texts: bounds of the step, the expected step and run, failures, the book's MFU."""
    estimate = plan.estimate
    step = plan.step
    at_mfu = estimate.at_mfu
    bounds = seconds_span(step.lower, step.upper)
    limits = "roofline, comms hidden / expected rates, none hidden"
    if plan.hardware.n_chips == 1:
        limits = "roofline / expected rates"
    yield "step", f"{bounds} ({limits})"
    yield (
        "expected",
        f"{duration(step.expected)}{_spread(plan)}, MFU {percent(estimate.mfu)}"
        + _run(estimate.run_s, estimate.chip_hours, estimate.usd)
        + _chip_price(plan)
        + f" ({_source(plan)})",
    )
    yield from _beyond_practice(plan)
    if estimate.goodput:
        yield "failures", _failures(estimate.goodput)
    yield (
        "book",
        f"at {percent(at_mfu.mfu)} MFU: step {duration(at_mfu.step_s)}"
        + _run(at_mfu.run_s, at_mfu.chip_hours, at_mfu.usd),
    )


def _failures(planned: PlannedGoodput) -> str:
    """The goodput, and the rates of failures, checkpoints and restarts that it assumes."""
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
    """The relative error of the expected step: ` ±9 %`; none is known at other rates."""
    rates = plan.estimate.rates
    if rates.name in ("peak", MEASURED.name):
        return ""
    return f" ±{percent(rates.spread)}"


def _source(plan: Plan) -> str:
    """The source of the rates that the expected step is computed with."""
    rates = plan.estimate.rates
    if rates.name == "peak":
        return "peak rates"
    if rates.name == MEASURED.name:
        return f"rates of {rates.name}"
    framework = plan.workload.framework
    under = f" under {framework}" if framework not in ("", UNKNOWN_FRAMEWORK) else ""
    return f"rates of {rates.name} runs{under}, {rates.as_of}"


def _run(run_s: float | None, chip_hours: float | None, usd: float | None) -> str:
    """Time, chip-hours and price of a run; empty if its number of tokens is not given."""
    if run_s is None or chip_hours is None:
        return ""
    price = "no public price"
    if usd is not None:
        price = units.show_dollars(usd)
    return f", {duration(run_s)}, {units.show_count(chip_hours)} chip-hours, {price}"


def _chip_price(plan: Plan) -> str:
    """The price of a chip-hour, by which the price of the run is computed: ` at $4.20`."""
    dollars = plan.hardware.figures.get("price.chip_hour")
    if dollars is None or plan.estimate.usd is None:
        return ""
    return f" at {units.show_dollars(dollars)}"


def _bars(plan: Plan, verbose: bool) -> Iterator[list[str]]:
    """Rows of name, quantity, bar and note: arithmetic, HBM, traffic by role, memory."""
    estimate = plan.estimate
    overlaps = {}
    hbm_bound_s = 0.0  # by which reads and writes of HBM take longer than the arithmetic
    for operation in plan.operations:
        hbm_bound_s += max(operation.hbm_s - operation.math_s, 0.0)
        if operation.role:
            overlaps[operation.role] = operation.hidden
    longest_s = max(estimate.compute_s, estimate.hbm_s, *estimate.comm_s.values(), 0.0)

    def time_bar(name: str, seconds: float, note: str) -> list[str]:
        return [f"  {name}", duration(seconds), bar(seconds, longest_s), note]

    yield time_bar("T_math", estimate.compute_s, "bars are times at peak rates")
    if verbose or estimate.bound == "hbm" or hbm_bound_s > SMALL_HBM * estimate.compute_s:
        yield time_bar("T_hbm", estimate.hbm_s, "")
    for role, seconds in sorted(estimate.comm_s.items(), key=lambda item: -item[1]):
        if seconds < SMALL_TRAFFIC * longest_s and not verbose:
            continue
        note = "exposed"
        if overlaps.get(role):
            note = "overlaps with compute"
        yield time_bar(role, seconds, note)
    memory = plan.memory
    strategy = plan.strategy
    note = f"of {units.show_gib(memory.capacity)}, remat {strategy.remat}"
    if strategy.n_microbatches > 1:
        note += f", {strategy.n_microbatches:,} microbatches"
    if plan.layout.offload:
        note += f", {listed(plan.layout.offload)} in the host's memory"
    yield ["  memory", units.show_gib(memory.total), bar(memory.total, memory.capacity), note]


def _excess(plan: Plan) -> Iterator[tuple[str, str]]:
    """By how much a plan that does not fit exceeds the memory, and which parts take it."""
    memory = plan.memory
    if memory.left >= 0:
        return
    parts = ", ".join(f"{part} {units.show_gib(n)}" for part, n in memory.largest_parts.items())
    yield (
        "over",
        f"by {units.show_gib(-memory.left)}: {units.show_gib(memory.total)} and "
        f"{units.show_gib(memory.margin)} kept free, {units.show_gib(memory.capacity)} is there. "
        f"It takes {parts}.",
    )


def _not_trained(plan: Plan, any_layout_by: str) -> Iterator[tuple[str, str]]:
    """What the trainer does not run of the plan, and why it is planned; what was not searched."""
    for reason in plan.why:
        if isinstance(reason, NoPipelines | NotInFramework):
            yield "train", reason_text(reason)
    limits = [reason.limit for reason in plan.why if isinstance(reason, NotTrained)]
    names = [limit_name(limit) for limit in limits]
    if not names:
        return
    cause = "no plan that it runs has the given choices"
    if all(limit.kind == "dtype" for limit in limits):
        cause = "of layouts, those that it runs are searched: --any-layout searches all"
    if plan.strategy.any_layout:
        cause = any_layout_by
    elif plan.workload.framework not in ("", UNKNOWN_FRAMEWORK):
        cause = f"the plan is for {plan.workload.framework}"
    yield "train", f"The trainer does not run {listed(names)}; {cause}."


def _state(plan: Plan) -> str:
    """The word for the precision of the training state, its bytes per parameter, its dtypes."""
    job = plan.job
    dtypes = {"weights": job.weights, "gradients": job.gradients}
    if OPTIMIZER_MOMENTS[job.optimizer]:
        dtypes["moments"] = job.moments
    if job.master and not job.precision:
        dtypes["master"] = job.master
    names_by_dtype: dict[str, list[str]] = {}
    for name, dtype in dtypes.items():
        names_by_dtype.setdefault(dtype, []).append(name)
    parts = [f"{dtype} {listed(names)}" for dtype, names in names_by_dtype.items()]
    text = f"{plan.estimate.state_bytes_per_parameter:g} B a parameter"
    if job.precision:
        text = f"{job.precision}, {text}"
    if job.optimizer in ("adafactor", "muon"):  # other parameters have another state
        text += " of a matrix"
    text += f": {', '.join(parts)}"
    if job.loses_updates:
        text += f". {LOSES_UPDATES}"
    return text


def _reasons(plan: Plan, verbose: bool) -> Iterator[str]:
    """The reasons of the plan as sentences, except those that have a bar or a line of their own.

    Among many reasons the book's threshold of tokens per chip and a small bubble are left out.
    """
    if verbose:
        yield from (reason_text(why) for why in plan.why if not isinstance(why, MemoryRoom))
        return
    said = (
        MemoryRoom,
        NotTrained,
        NotInFramework,
        NoPipelines,
        TokenPrediction,
        UsualSettings,
    )  # in lines of their own
    reasons = [why for why in plan.why if not isinstance(why, said)]
    crowded = len(reasons) > MAX_REASONS
    for reason in reasons:
        is_small = isinstance(reason, Bubble) and reason.share < SMALL_BUBBLE
        if not (crowded and (is_small or isinstance(reason, TokensPerChip))):
            yield reason_text(reason)


def _beyond_practice(plan: Plan) -> Iterator[tuple[str, str]]:
    """The highest published MFU on the chip, where the plan expects more."""
    dtype = plan.strategy.precision["compute"]
    best = best_published_mfu(plan.hardware.chip, str(dtype))
    own_rates = plan.estimate.rates.name in (PEAK.name, MEASURED.name)
    if best and not own_rates and plan.estimate.mfu > best + PERCENT:
        yield "beyond", f"the best published run on {plan.hardware.chip}: MFU {percent(best)}"


def _practice(plan: Plan) -> Iterator[str]:
    """The plan's rival, where published runs shard one of both and not the other."""
    practice = plan.practice
    if not practice or (practice.within and not practice.rival):
        return
    sizes = f"{practice.min_chips:,} to {practice.max_chips:,} chips"
    rival = practice.rival
    if not rival:
        if plan.strategy.fixed or plan.strategy.most:
            return  # the user's own choices
        yield f"in practice: no published run on {sizes} is sharded as any plan that fits."
        return
    split = mesh_text(rival.mesh)
    if rival.mesh["pipe"] > 1:
        chunks = f" ×{rival.virtual}" if rival.virtual > 1 else ""
        split += f" ({rival.schedule}{chunks})"
    change = abs(rival.step_s / plan.step.expected - 1)
    if practice.within:
        yield (
            f"outside practice: {split}: expected {duration(rival.step_s)}, {percent(change)} "
            f"less. No published run on {sizes} is sharded so, and predictions are not that exact."
        )
    else:
        yield (
            f"in practice: {split}: expected {duration(rival.step_s)}, {percent(change)} more. No "
            f"published run on {sizes} is sharded as this plan is."
        )


def _alternatives(plan: Plan) -> Iterator[str]:
    """The best splits with other tensor sizes, except those that a reason already mentions."""
    mentioned = [reason.mesh for reason in plan.why if isinstance(reason, TensorSplit)]
    for other in plan.alternatives[:MAX_ALTERNATIVES]:
        if other.mesh not in mentioned:
            yield (
                f"{mesh_text(other.mesh)}: expected {duration(other.step_s.expected)}, "
                f"{loss_text(other.loses_on)}"
            )
