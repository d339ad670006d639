"""A serving plan on one screen: deployment, latencies, times, reasons, the Pareto front."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence

from shardwise import units
from shardwise.plan.schema.serving import PlannedEngines, ServingPlan, ServingPoint
from shardwise.plan.schema.traffic import layout_choices
from shardwise.report.serving.details import details
from shardwise.report.serving.reasons import BOUNDS, loosened_text, reason_text, rule_text
from shardwise.report.serving.traffic import traffic_lines
from shardwise.report.style import Block, bar, label_first, labelled, quiet, strong, table
from shardwise.report.words import (
    chips,
    counted,
    dtypes_text,
    duration,
    measured_as,
    mesh_text,
    percent,
    seconds_span,
)

SCREEN_WIDTH = 80  # characters
SCREEN_LINES = 25  # reasons fill the lines that are left; -v shows everything
LABEL_WIDTH = 8  # characters before a text of `labelled`
SHORT_REASON = 2  # lines of a short reason
SMALL_PART = 0.03  # of TPOT; shorter parts have no bar
# Parts of TPOT, the longest ones, that have a bar under simulated traffic; one more with `prompts`.
BARS_WITH_TRAFFIC = 3
BAR_WIDTH = 12  # characters
PART_LABELS = {"kv": "KV cache"}
PART_NOTES = {  # what is between steps
    "prompts": "of other requests, between decode steps",
    "drafts": "passes of the draft model",
    "waiting": "for KV caches from prefill engines, and for a place",
}
# Constraints of the reasons that may fill the screen, the most important first. The other reasons
# say what the bars show.
PRIORITY = ("disaggregation", "speculation", "batch", "chips", "gathered", "tensor")


def blocks(
    plan: ServingPlan, *, verbose: bool = False, saved: str | None = None
) -> Iterator[Block]:
    """The whole answer.

    Args:
        verbose: show everything, with tables of placement, rules, memory and operations.
        saved: the file to which the plan was saved, if any.
    """
    times = list(_times(plan, verbose))
    bars = list(_bars(plan, verbose))
    n_lines = len(bars) + 2 + _n_lines(headline(plan), 0)
    for _, text in times:
        n_lines += _n_lines(text, LABEL_WIDTH)
    points = plan.pareto
    crowded = SCREEN_LINES - n_lines - len(points) < SHORT_REASON
    if (plan.estimate.traffic or crowded) and not verbose:
        points = _first_middle_last(points)
    yield strong(headline(plan))
    yield labelled(times)
    yield table(["", ">", "", ""], bars)
    if verbose:
        reasons = [reason_text(reason) for reason in plan.why if reason.constraint != "max_seq"]
    else:
        reasons = _reasons_that_fit(plan, SCREEN_LINES - n_lines - len(points))
    if reasons:
        yield labelled(label_first("why", reasons))
    yield front(points, plan)
    if verbose:
        yield from details(plan)
    if saved:
        yield f"saved {saved}"
    else:
        yield quiet("type  -o plan.json to save the plan  ·  --top 5 for others  ·  -v for tables")


def _n_lines(text: str, indent: int) -> int:
    """The number of screen lines of a text that is indented by `indent` characters."""
    return len(textwrap.wrap(text, SCREEN_WIDTH - indent))


def headline(plan: ServingPlan) -> str:
    """The bound of a decode step, the deployment, its TPOT, throughput and price."""
    estimate = plan.estimate
    strategy = plan.strategy
    deployment = engines_text(strategy.servers)
    if strategy.prefill:
        deployment += f" + {engines_text(strategy.prefill)} for prefill"
    text = (
        f"{BOUNDS[estimate.bound]}. {deployment}, {dtypes_text(strategy.precision)}: TPOT "
        f"{_tpot(plan)}, "
        f"{_rate(estimate.tokens_per_s_per_chip)} tokens/s/chip"
    )
    if estimate.usd_per_million_tokens:
        price = units.show_dollars(estimate.usd_per_million_tokens.output)
        text += f", {price} per million output tokens"
    return f"{text}."


def _tpot(plan: ServingPlan) -> str:
    """The median TPOT of simulated requests; without a simulation the estimated mean."""
    tpot_s = plan.estimate.tpot_s
    if plan.estimate.traffic:
        tpot_s = plan.estimate.traffic.tpot_s.p50
    return duration(tpot_s)


def engines_text(engines: PlannedEngines) -> str:
    """Engines with their layout and machine: `2 engines of tensor 8 (KV by batch) on h100:8`."""
    text = mesh_text({**engines.mesh, "data": 1})
    text += layout_choices(
        engines.weights, engines.kv, engines.expert_tensor, engines.mesh.get("tensor", 1)
    )
    if engines.count > 1:
        text = f"{engines.count:,} engines of {text}"
    return f"{text} on {engines.hardware}"


def _rate(value: float) -> str:
    return units.significant(value, 3)


def _times(plan: ServingPlan, verbose: bool) -> Iterator[tuple[str, str]]:
    """Labels and texts: warnings, latencies of simulated requests, means, totals."""
    yield from warnings(plan)
    if loosened := loosened_text(plan.strategy.rule):
        yield "bounds", loosened
    if plan.estimate.traffic:
        yield from traffic_lines(plan.estimate.traffic)
    if verbose or not plan.estimate.traffic:
        yield from _means(plan)
    yield "total", _total(plan)
    yield from measured_as(plan.hardware)


def warnings(plan: ServingPlan) -> Iterator[tuple[str, str]]:
    """Label and text of a context that is beyond the model's."""
    for reason in plan.why:
        if reason.constraint == "max_seq":
            yield "warning", reason_text(reason)


def _means(plan: ServingPlan) -> Iterator[tuple[str, str]]:
    """Labels and texts: the time of a decode step, and TTFT with the time of the prefill."""
    work = plan.workload
    decode = plan.estimate.decode
    prefill = plan.estimate.prefill
    bounds = seconds_span(decode.step_s.lower, decode.step_s.upper)
    extremes = " (all communication hidden / none)"
    if plan.strategy.servers.n_chips == 1:
        extremes = " (roofline / expected rates)"
    yield (
        "decode",
        f"{bounds}{extremes} for {counted(decode.batch, 'sequence')} × "
        f"{decode.context:,.0f} tokens; {_source(plan)}",
    )
    bounds = seconds_span(prefill.step_s.lower, prefill.step_s.upper)
    at_mfu = prefill.at_mfu
    text = (
        f"{duration(plan.estimate.ttft_s)} (prefill of {work.prompt or work.context:,} tokens: "
        f"{bounds}; {duration(at_mfu.step_s)} at {percent(at_mfu.mfu)} MFU"
    )
    if at_mfu.servers:
        text += f", {at_mfu.servers:.2g} prefill engines per decode engine of as many chips"
    yield "TTFT", f"{text})"


def _total(plan: ServingPlan) -> str:
    """Chips, throughput and price of the deployment, and the rule that chose it."""
    estimate = plan.estimate
    text = chips(plan.strategy.n_chips)
    idle = plan.strategy.n_chips - plan.strategy.engine_chips
    if idle:
        text += f" ({idle:,} idle: too few for another engine)"
    text += f", {_rate(estimate.tokens_per_s)} tokens/s"
    if estimate.requests_per_s is not None:
        text += f", {_rate(estimate.requests_per_s)} requests/s"
    if plan.workload.states_load and estimate.most_requests_per_s and not estimate.traffic:
        text += (
            f" of at most {_rate(estimate.most_requests_per_s)} ({percent(estimate.utilisation)})"
        )
    if estimate.usd_per_hour is not None:
        text += f", {units.show_dollars(estimate.usd_per_hour)} an hour"
    price = estimate.usd_per_million_tokens
    if price and price.input is not None:
        text += f", {units.show_dollars(price.input)} per million input tokens"
    return f"{text}. Rule: {rule_text(plan.strategy.rule)}"


def _source(plan: ServingPlan) -> str:
    """The source of the rates that the estimate is computed with."""
    rates = plan.estimate.rates
    if rates.name == "peak":
        return "peak rates"
    engine = plan.workload.engine
    software = "" if engine == "unknown" else f" under {engine}"
    return f"rates of {rates.name}{software}, {rates.as_of}"


def _bars(plan: ServingPlan, verbose: bool) -> Iterator[list[str]]:
    """Rows of name, quantity, bar and note: the parts of the mean TPOT, then memory."""
    decode = plan.estimate.decode
    parts = plan.estimate.tpot_parts or decode.parts
    tpot_s = sum(parts.values())
    max_bars = len(parts)
    if plan.estimate.traffic and not verbose:
        max_bars = BARS_WITH_TRAFFIC + ("prompts" in parts)
    longest = sorted(parts, key=lambda name: -parts[name])[:max_bars]
    for name, seconds in parts.items():
        if name in longest and (seconds >= SMALL_PART * tpot_s or verbose):
            label = f"  {PART_LABELS.get(name, name)}"
            time_bar = bar(seconds, tpot_s, BAR_WIDTH)
            yield [label, duration(seconds), time_bar, _part_note(name, seconds / tpot_s)]
    memory = plan.memory
    note = (
        f"of {units.show_gib(memory.capacity)}, KV {units.show_gib(memory.kv_cache)}; "
        f"{decode.max_batch:,} sequences fit"
    )
    memory_bar = bar(memory.total, memory.capacity, BAR_WIDTH)
    yield ["  memory", units.show_gib(memory.total), memory_bar, note]


def _part_note(name: str, share: float) -> str:
    """The share of a part of TPOT, and what it is where its name does not say so."""
    text = percent(share)
    return f"{text}, {PART_NOTES[name]}" if name in PART_NOTES else text


def _reasons_that_fit(plan: ServingPlan, n_lines: int) -> list[str]:
    """The most important reasons that fit in `n_lines`.

    Without simulated traffic there is at least one, the shortest.
    """
    reasons = [reason for reason in plan.why if reason.constraint in PRIORITY]
    reasons.sort(key=lambda reason: PRIORITY.index(reason.constraint))
    texts = [reason_text(reason) for reason in reasons]
    shown = []
    for text in texts:
        reason_lines = _n_lines(text, LABEL_WIDTH)
        if reason_lines <= n_lines:
            shown.append(text)
            n_lines -= reason_lines
    if not (shown or plan.estimate.traffic):
        return sorted(texts, key=len)[:1]
    return shown


def _first_middle_last(points: tuple[ServingPoint, ...]) -> tuple[ServingPoint, ...]:
    if len(points) < 4:
        return points
    return points[0], points[len(points) // 2], points[-1]


def front(points: Sequence[ServingPoint], plan: ServingPlan) -> Block:
    """A table of the Pareto front: TPOT against tokens/s/chip, or against chips at a stated load.

    Args:
        points: deployments of the front, or some of them.
    """
    same_machine = all(point.hardware == plan.hardware.name for point in points)
    has_price = any(point.usd_per_million_output_tokens is not None for point in points)
    # `--capacity` finds a rate for the chosen deployment alone: its rule has none.
    rule = plan.strategy.rule
    has_load = rule.rate is not None or rule.users is not None
    headers = [">TPOT", ">chips" if has_load else ">tok/s/chip"]
    if has_price:
        headers.append(">$/M out")
    headers += [">TTFT", ">batch", "front: engines"]
    if any(point.prefill_mesh for point in points):
        headers[-1] += " + prefill of chips"
    rows = []
    for point in points:
        throughput_or_chips = _rate(point.tokens_per_s_per_chip)
        if has_load:
            throughput_or_chips = f"{point.n_chips:,}"
        row = [duration(point.tpot_s), throughput_or_chips]
        if has_price:
            row.append(f"{point.usd_per_million_output_tokens or 0.0:,.2f}")
        row += [duration(point.ttft_s), f"{point.batch:,}"]
        row.append(deployment(point, show_machine=not same_machine))
        rows.append(row)
    return table(headers, rows)


def deployment(point: ServingPoint, *, show_machine: bool) -> str:
    """Decode engines, prefill engines of so many chips, and machine: `2 of tensor 8 + 1 of 4`."""
    text = mesh_text({**point.mesh, "data": 1})
    if point.engines > 1:
        text = f"{point.engines:,} of {text}"
    if point.prefill_mesh:
        n_chips = math.prod({**point.prefill_mesh, "data": 1}.values())
        text += f" + {point.prefill_engines} of {n_chips}"
    if show_machine:
        text += f", {point.hardware}"
    return text


def ranked(plans: Sequence[ServingPlan]) -> Block:
    """A table with one line per plan, best first."""
    rows = []
    for rank, plan in enumerate(plans, 1):
        engines = engines_text(plan.strategy.servers)
        if plan.strategy.prefill:
            engines += f" + {engines_text(plan.strategy.prefill)}"
        row = [
            f"{rank}",
            duration(plan.estimate.tpot_s),
            duration(plan.estimate.ttft_s),
            _rate(plan.estimate.tokens_per_s_per_chip),
            f"{plan.strategy.n_chips:,}",
            f"{plan.estimate.decode.batch:,}",
            engines,
        ]
        rows.append(row)
    headers = [">", ">TPOT", ">TTFT", ">tokens/s/chip", ">chips", ">batch", "engines"]
    return table(headers, rows)
