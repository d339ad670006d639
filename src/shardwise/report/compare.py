"""Planned beside compiled and measured, and pairs of plans, runs and traces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardwise import units
from shardwise.compare import causes
from shardwise.compare.gate import Excess
from shardwise.compare.groups import MATMUL_GROUPS
from shardwise.compare.pairs import GREW, MEMORY_PARTS
from shardwise.compare.result import (
    Cause,
    Figure,
    PairComparison,
    PairRow,
    Row,
    StepComparison,
)
from shardwise.compare.traces import MORE_REMAT, NEW_COLLECTIVE
from shardwise.estimate.calibration import own_factor
from shardwise.hardware import Chip
from shardwise.report.check.faults import remedy, sentence
from shardwise.report.compare_causes import phrase
from shardwise.report.style import Block, label_first, labelled, quiet, strong, table
from shardwise.report.tables import DASH
from shardwise.report.words import counted, percent, signed_percent
from shardwise.serve.load.measurement import Measurement

N_CAUSES = 5  # in words, the largest
N_ROWS = 14  # of a pair
LARGE = 0.05  # share of a step
SAME = 0.01  # fraction of a step by which two steps differ that are the same
SLOW_MATMULS = 0.8  # of their planned rates, below which the machine itself is slower
SLOW_STEP = 0.9  # the same of the whole step
WRONG_RATES = 1.5  # planned over measured time above which the rates of the plan are doubted
SECONDS = ("step", "ttft", "tpot")
SERVED = ("tpot", "tokens/s/chip", "ttft")  # figures of engines, in the order of the first line
PLAIN = ("loss", "tokens/s", "tokens/s/chip")
Cells = tuple[list[str], list[list[str]]]  # headers and rows of `style.table`
seconds = units.show_seconds


def step_blocks(comparison: StepComparison, excess: Sequence[Excess]) -> Iterator[Block]:
    """The answer in a line, the groups with their causes, other figures, and what exceeds."""
    yield strong(step_headline(comparison))
    yield from _excess(excess)
    yield labelled(_about(comparison))
    if comparison.faults:
        yield labelled(label_first("try", map(remedy, comparison.faults)))
    yield table(*step_table(comparison))
    if any(row.ratio for row in comparison.rows):
        yield quiet("ratio: planned over measured time; what costs most comes first")
    if comparison.figures:
        yield table(*figure_table(comparison.figures))
    if len(comparison.causes) > 1:
        yield labelled(label_first("causes", map(_with_seconds, _shown_causes(comparison))))
    if comparison.accounted_fraction is None and comparison.step_s is not None:
        yield quiet(
            "type  shardwise compare PLAN TRACE for the groups, beside a trace of its steps"
        )


def _shown_causes(comparison: StepComparison) -> list[Cause]:
    """The largest causes; more memory than planned, which has no seconds, is always among them."""
    memory = [cause for cause in comparison.causes[N_CAUSES:] if cause.kind == causes.MEMORY][:1]
    return [*comparison.causes[: N_CAUSES - len(memory)], *memory]


def calibrated_blocks(chip: Chip, path: str) -> Iterator[Block]:
    """By how much own runs correct the chip, and how it is planned for."""
    n_runs = chip.n_own_runs or 1
    ratio = chip.own_step_ratio or 1.0
    factor = own_factor(ratio, n_runs)
    yield quiet(
        f"saved {path}: {chip.name}, {counted(n_runs, 'own run')}, steps ×{ratio:.3g} as long as "
        f"expected; plans expect ×{factor:.3g}"
    )
    yield quiet(f"type  shardwise plan MODEL {path}:N --train ...")


def pair_blocks(comparison: PairComparison, excess: Sequence[Excess]) -> Iterator[Block]:
    """Which is slower and by what, the settings that differ, and both beside each other."""
    yield strong(pair_headline(comparison))
    yield from _excess(excess)
    yield labelled([("A", comparison.first), ("B", comparison.second)])
    if comparison.settings:
        yield table(*setting_table(comparison))
    *groups, step = comparison.rows
    yield table(*pair_table("time", (*groups[:N_ROWS], step)))
    if comparison.figures:
        yield table(*pair_table("", comparison.figures))
    if comparison.causes:
        yield labelled(label_first("causes", map(phrase, comparison.causes[:N_CAUSES])))
    if comparison.noise:
        yield quiet(f"steps vary by {percent(comparison.noise)}: smaller differences say nothing")


def step_headline(comparison: StepComparison) -> str:
    """The step as planned and measured, and what would shorten it most."""
    step = comparison.rows[-1]
    if comparison.faults:
        first = sentence(comparison.faults[0], comparison.n_devices)
        return f"{first} Step {seconds(step.measured_s or 0.0)} measured."
    parts = []
    failed = _failed_requests(comparison.load)
    if step.measured_s is not None:
        parts.append(f"{seconds(step.measured_s)} measured")
    if step.compiled_s is not None and (step.measured_s is None or step.planned_s is None):
        parts.append(f"{seconds(step.compiled_s)} compiled")
    if step.planned_s is not None:
        parts.append(f"{seconds(step.planned_s)} planned")
    is_load = comparison.load is not None and comparison.accounted_fraction is None
    text = f"{failed}{'TPOT' if is_load else 'step'} {', '.join(parts)}"
    if comparison.doubt is not None:
        text += f", and {phrase(comparison.doubt)}: is this a trace of the plan?"
        if comparison.causes:
            text += f" If it is, the biggest win: {_with_seconds(comparison.causes[0])}."
        return text
    if step.ratio is not None:
        text += f" ({percent(step.ratio)} of the planned speed)"
    if comparison.other_devices:
        text += (
            f": compiled for {comparison.hardware} and measured on a {comparison.other_devices}, "
            "two times that say nothing about each other"
        )
    if step.ratio is not None and step.ratio > WRONG_RATES:
        return (
            f"{text}. The plan's rates are not those of this machine: measure it again (shardwise "
            "hw measure), or correct a plan of training (compare --calibrate)."
        )
    slow = _slow_machine(comparison)
    if slow and step.ratio is not None:
        return f"{text}: {slow}. Measure it again when it is quiet."
    if comparison.causes:
        if comparison.causes[0].kind == causes.MEMORY:  # which costs no seconds
            return f"{text}. No part takes longer than planned; {phrase(comparison.causes[0])}."
        return f"{text}. Biggest win: {_with_seconds(comparison.causes[0])}."
    if step.planned_s is None:
        return f"{text}. Nothing here says what lengthens it: there is no plan of its parts."
    if step.measured_s is not None and comparison.accounted_fraction is None:
        return f"{text}. Its parts were not measured: a trace has them."
    return f"{text}. No part takes longer than planned, beyond what steps vary by."


def _failed_requests(load: Measurement | None) -> str:
    """A sentence on the requests that failed; empty if none did."""
    if load is None or not load.errors:
        return ""
    error = max(load.errors, key=lambda error: load.errors[error])
    n_sent = load.requests + load.n_errors
    return (
        f"{load.n_errors:,} of {n_sent:,} requests failed ({error}: {load.messages[error]}). "
        "Of the others: "
    )


def _with_seconds(cause: Cause) -> str:
    if cause.kind in (causes.DEVICES_WAIT, causes.CALLBACKS):
        return phrase(cause)  # with its seconds
    where = f"{cause.group}: " if cause.group and cause.group not in phrase(cause) else ""
    cost = f" ({seconds(cause.seconds)})" if cause.seconds else ""
    return f"{where}{phrase(cause)}{cost}"


def _about(comparison: StepComparison) -> Iterator[tuple[str, str]]:
    yield "plan", f"{comparison.name} on {comparison.hardware}"
    steps = comparison.steps
    if steps is not None:
        source = "trace" if comparison.accounted_fraction is not None else "run"
        spread = f"{seconds(steps.low_s)} to {seconds(steps.high_s)}"
        if source == "trace":
            spread = f"the longest {seconds(steps.high_s)}"
        yield source, f"{counted(steps.n, 'step')} of {seconds(steps.typical_s)}, {spread}"
    if comparison.run is not None:
        run = comparison.run
        yield (
            "run",
            f"{counted(run.n, 'step')}, median {seconds(run.typical_s)}, a tenth below "
            f"{seconds(run.low_s)}, a tenth above {seconds(run.high_s)}",
        )
    if comparison.accounted_fraction is not None:
        yield "account", f"{percent(comparison.accounted_fraction)} of the step is in operations"
    hidden = comparison.hidden
    if hidden is not None:
        measured = ""
        if hidden.measured is not None:
            measured = f", measured {seconds(hidden.measured)}"
        yield "hidden", f"communication planned {seconds(hidden.planned or 0.0)}{measured}"


def _slow_machine(comparison: StepComparison) -> str:
    """That all matmuls are slower than a measured machine multiplies; empty if they are not.

    Nothing else may lengthen the step by more than they do.
    """
    matmuls = [row for row in comparison.rows if row.group in MATMUL_GROUPS and row.ratio]
    ratios = [row.ratio for row in matmuls if row.ratio]
    if not comparison.rates_measured or not ratios or max(ratios) >= SLOW_MATMULS:
        return ""
    *_, step = comparison.rows
    if step.ratio is None or step.ratio >= SLOW_STEP:
        return ""
    excess_s = sum((row.measured_s or 0.0) - (row.planned_s or 0.0) for row in matmuls)
    if any(c.seconds > excess_s for c in comparison.causes if c.group not in MATMUL_GROUPS):
        return ""
    return (
        f"all matmuls run at most at {percent(max(ratios))} of their planned rates: the "
        f"machine is slower than when {comparison.hardware.rpartition(':')[0]} was measured, "
        "or busy"
    )


def step_table(comparison: StepComparison) -> Cells:
    """Seconds by group, with the cause of each gap; the last row is the step."""
    has_compiled = any(row.compiled_s is not None for row in comparison.rows)
    headers = ["group", ">planned", ">compiled", ">measured", ">ratio", "cause"]
    if not has_compiled:
        headers.remove(">compiled")
    rows = []
    for row in comparison.rows:
        cells = [_seconds_cell(row.planned_s), _seconds_cell(row.compiled_s)]
        if not has_compiled:
            cells.pop()
        rows.append([f"  {row.group}", *cells, *_row_end(row)])
    return headers, rows


def _row_end(row: Row) -> list[str]:
    ratio = DASH if row.ratio is None else percent(row.ratio)
    is_step = row.group == "step"
    cause = "" if row.cause is None or is_step else phrase(row.cause)
    return [_seconds_cell(row.measured_s), ratio, cause]


def _seconds_cell(value: float | None) -> str:
    return seconds(value) if value else DASH


def figure_table(figures: Sequence[Figure]) -> Cells:
    """Memory, FLOPs and other quantities, as planned, compiled and measured."""
    rows = []
    for figure in figures:
        values = (figure.planned, figure.compiled, figure.measured)
        rows.append([f"  {figure.quantity}", *(_quantity(figure.quantity, v) for v in values)])
    return ["", ">planned", ">compiled", ">measured"], rows


def setting_table(comparison: PairComparison) -> Cells:
    """The choices in which a pair differs."""
    rows = [[f"  {s.name}", s.first or DASH, s.second or DASH] for s in comparison.settings]
    return ["differs", "A", "B"], rows


def pair_table(title: str, rows: Sequence[PairRow]) -> Cells:
    """Quantities of a pair and their change: seconds of groups under `time`, else figures."""
    cells = [_pair_cells(row, "step" if title == "time" else row.group) for row in rows]
    return [title, ">A", ">B", ">B - A", ">change"], cells


def _quantity(name: str, value: float | None) -> str:
    if value is None:
        return DASH
    if name in SECONDS:
        return seconds(value)
    if name == "FLOPs":
        return units.show_rate(value, "FLOP")
    if name in PLAIN:
        return units.significant(value, 4)
    if name == "memory" or name in MEMORY_PARTS:
        return units.show_gib(value)
    return units.show_bytes(value)


def pair_headline(comparison: PairComparison) -> str:
    """Which of the two is slower, and by what; of engines, what their users see of them."""
    served = {row.group: row for row in comparison.figures if row.group in SERVED}
    if len(served) == len(SERVED):
        changes = (_served_change(served[name]) for name in SERVED)
        return f"B against A: {', '.join(changes)}."
    step = comparison.rows[-1]
    share = step.change / step.first
    text = f"A {seconds(step.first)}, B {seconds(step.second)} a step"
    if abs(step.change) <= max(SAME, comparison.noise) * min(step.first, step.second):
        reason = "steps vary by as much" if comparison.noise > SAME else "the same"
        text = f"{text} ({signed_percent(share)}): {reason}"
        differs = [cause for cause in comparison.causes if cause.kind != GREW]
        if differs:
            return f"{text}, and yet {phrase(differs[0])}."
        if row := _doubled(comparison):
            return f"{text}, and yet {row.group} {seconds(row.first)} and {seconds(row.second)}."
        return f"{text}."
    text += f": B is {'slower' if share > 0 else 'faster'} ({signed_percent(share)})"
    if comparison.causes:
        cause = comparison.causes[0]
        largest = comparison.rows[0]
        is_larger = largest.change * share > 0 and abs(largest.change) > cause.seconds
        if comparison.kind == "traces" and largest is not step and is_larger:
            grown = f"{largest.group}, {seconds(largest.first)} and {seconds(largest.second)}"
            if cause.kind == MORE_REMAT or (cause.kind == NEW_COLLECTIVE and cause.name):
                return f"{text}, by {phrase(cause)}; most of it in {grown}."
            return f"{text}, most by {grown}; then by {phrase(cause)}."
        return f"{text}, most by {phrase(cause)}."
    return f"{text}."


def _doubled(comparison: PairComparison) -> PairRow | None:
    """The part of the step that grew most beyond what variation explains: twice as long at least.

    It is part of the slower one, and a twentieth of the step.
    """
    *parts, step = comparison.rows
    for row in parts:
        low, high = sorted((row.first, row.second))
        if row.change * step.change > 0 and high > 2 * low and high - low > LARGE * step.first:
            return row
    return None


def _served_change(row: PairRow) -> str:
    """`TPOT 16.9 ms (-36.2 %)`, `640 tokens/s/chip (+60 %)`."""
    change = signed_percent(row.change / row.first) if row.first else DASH
    value = _quantity(row.group, row.second)
    named = f"{value} {row.group}" if row.group in PLAIN else f"{row.group.upper()} {value}"
    return f"{named} ({change})"


def _pair_cells(row: PairRow, quantity: str) -> list[str]:
    """The cells of a row.

    Args:
        quantity: what it is a row of: `step`, or the name of a figure.
    """
    change = signed_percent(row.change / row.first) if row.first else DASH
    sign = "-" if row.change < 0 else "+"
    values = (row.first, row.second, abs(row.change))
    first, second, difference = (_quantity(quantity, value) for value in values)
    return [f"  {row.group}", first, second, f"{sign}{difference}", change]


def _excess(excess: Sequence[Excess]) -> Iterator[Block]:
    for part in excess:
        value = _quantity(part.quantity, part.value)
        bound = _quantity(part.quantity, part.bound)
        yield strong(f"Exceeded: {part.quantity} {value}, --max {part.quantity}={bound}.")
