"""A serving plan on one screen: the answer, what a token takes, memory, why, and the front."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from shardwise import units
from shardwise.plan.schema.serving import PlannedEngines, ServingPlan, ServingPoint
from shardwise.report.serving.details import details
from shardwise.report.serving.reasons import BOUNDS, reason_text, rule_text
from shardwise.report.serving.traffic import seen
from shardwise.report.style import Block, bar, labelled, quiet, strong, table
from shardwise.report.words import chips, mesh_text, percent, seconds_span

SCREEN = 25  # lines of 80 columns; reasons take what is left of them, and all stand under -v
INDENT = 8  # of the longest label
SHORT_REASON = 2  # lines that the shortest one takes
SMALL = 0.03  # parts of a pass below this share of it have no bar
PARTS_BESIDE_TRAFFIC = 3  # the largest ones
BAR = 12
NAMES = {"kv": "KV cache"}
# Reasons in the order in which a screen has room for them; those that the bars tell come last.
FIRST = ("disaggregation", "speculation", "batch", "chips", "gathered", "tensor")


def blocks(
    plan: ServingPlan, *, verbose: bool = False, saved: str | None = None
) -> Iterator[Block]:
    """The whole answer; `verbose` adds placement, rules, memory and operations."""
    times, bars = [*_times(plan, verbose)], [*_bars(plan, verbose)]
    others = len(bars) + 2 + _lines(headline(plan), 0)
    others += sum(_lines(text, INDENT) for _, text in times)
    crowded = plan.estimate.traffic or SCREEN - others - len(plan.pareto) < SHORT_REASON
    points = _few(plan.pareto) if crowded and not verbose else plan.pareto
    room = SCREEN - others - len(points)
    yield strong(headline(plan))
    yield labelled(times)
    yield table(["", ">", "", ""], bars)
    if reasons := [*_reasons(plan, None if verbose else room)]:
        yield labelled(reasons)
    yield front(points, plan)
    if verbose:
        yield from details(plan)
    last = "type  -o plan.json keeps it  ·  --top 5 lists others  ·  -v shows its tables"
    yield f"saved {saved}" if saved else quiet(last)


def _lines(text: str, indent: int) -> int:
    """Lines that a text takes in 80 columns."""
    return len(textwrap.wrap(text, 80 - indent))


def headline(plan: ServingPlan) -> str:
    """What binds, the deployment, and what it gives."""
    told, strategy = plan.estimate, plan.strategy
    money = told.usd_per_million_tokens
    dollars = f", {units.show_dollars(money.output)} per million output tokens" if money else ""
    reads = f" + {servers(strategy.prefill)} for prompts" if strategy.prefill else ""
    return (
        f"{BOUNDS[told.bound]}. {servers(strategy.servers)}{reads}, {_dtypes(plan)}: "
        f"{_token(plan)} a token, {_rate(told.tokens_per_s_per_chip)} tokens/s/chip{dollars}."
    )


def _token(plan: ServingPlan) -> str:
    """What half of the simulated requests see, or the mean."""
    told = plan.estimate
    return units.show_seconds(told.traffic.tpot_s.p50 if told.traffic else told.tpot_s)


def servers(these: PlannedEngines) -> str:
    """`2 engines of tensor 8 (kv batch) on h100:8`."""
    mesh = mesh_text({**these.mesh, "data": 1})
    words = [these.weights] * (these.weights != "stationary")
    words += [f"KV by {these.kv}"] * (these.kv != "copied")
    words += ["whole experts"] * (these.expert_tensor == 1)
    told = f" ({', '.join(words)})" if words else ""
    many = f"{these.count:,} engines of " if these.count > 1 else ""
    return f"{many}{mesh}{told} on {these.hardware}"


def _dtypes(plan: ServingPlan) -> str:
    held = plan.strategy.precision
    kv = f", KV {held['kv']}" if held["kv"] != held["weights"] else ""
    return f"{held['weights']}{kv}"


def _rate(value: float) -> str:
    return units.significant(value, 3)


def _times(plan: ServingPlan, verbose: bool) -> Iterator[tuple[str, str]]:
    """What requests see, a pass and a prompt take, and all of it."""
    if plan.estimate.traffic:
        yield from seen(plan.estimate.traffic)
    if verbose or not plan.estimate.traffic:
        yield from _means(plan)
    yield "in all", _total(plan)


def _means(plan: ServingPlan) -> Iterator[tuple[str, str]]:
    told, work = plan.estimate, plan.workload
    decode, prefill = told.decode, told.prefill
    ms = units.show_seconds
    step = decode.step_s
    plural = "s" * (decode.batch > 1)
    each = f"{decode.batch:,} sequence{plural} × {decode.context:,.0f} tokens"
    yield (
        "pass",
        f"{seconds_span(step.lower, step.upper)} (all communication hidden / none) for {each}; "
        f"{_source(plan)}",
    )
    text = f"token after {ms(told.ttft_s)}; a prompt of {work.prompt or work.context:,} takes "
    text += seconds_span(prefill.step_s.lower, prefill.step_s.upper)
    text += f", at {percent(prefill.at_mfu.mfu)} MFU {ms(prefill.at_mfu.step_s)}"
    if prefill.at_mfu.servers:
        text += f": {prefill.at_mfu.servers:.2g} engines that read to one that generates"
    yield "first", text


def _total(plan: ServingPlan) -> str:
    """Rates, chips and money of the deployment, and the rule that took it."""
    told, work = plan.estimate, plan.workload
    text = f"{chips(plan.strategy.n_chips)}, {_rate(told.tokens_per_s)} tokens/s"
    if told.requests_per_s is not None:
        text += f", {_rate(told.requests_per_s)} requests/s"
    if work.rate and told.most_requests_per_s and not told.traffic:
        text += f" of {_rate(told.most_requests_per_s)} ({percent(told.utilisation)})"
    if told.usd_per_hour is not None:
        text += f", {units.show_dollars(told.usd_per_hour)} an hour"
    money = told.usd_per_million_tokens
    if money and money.input is not None:
        text += f", {units.show_dollars(money.input)} per million input tokens"
    return f"{text}. Taken: {rule_text(plan.strategy.rule)}"


def _source(plan: ServingPlan) -> str:
    rates = plan.estimate.rates
    return "peak rates" if rates.name == "peak" else f"rates of {rates.name}, {rates.as_of}"


def _bars(plan: ServingPlan, verbose: bool) -> Iterator[list[str]]:
    took = plan.estimate.decode.parts
    whole = plan.estimate.decode.step_s.expected
    shown = len(took) if verbose or not plan.estimate.traffic else PARTS_BESIDE_TRAFFIC
    large = sorted(took, key=lambda name: -took[name])[:shown]
    for name, seconds in took.items():
        if name in large and (seconds >= SMALL * whole or verbose):
            share = percent(seconds / whole)
            label = f"  {NAMES.get(name, name)}"
            yield [label, units.show_seconds(seconds), bar(seconds, whole, BAR), share]
    memory = plan.memory
    decode = plan.estimate.decode
    text = (
        f"of {units.show_gib(memory.capacity)}, KV {units.show_gib(memory.kv_cache)}; "
        f"{decode.max_batch:,} sequences fit"
    )
    held = bar(memory.total, memory.capacity, BAR)
    yield ["  memory", units.show_gib(memory.total), held, text]


def _reasons(plan: ServingPlan, room: int | None) -> Iterator[tuple[str, str]]:
    """As many as have room, or the shortest (none beside traffic); all where it does not matter."""
    rank = {name: i for i, name in enumerate(FIRST)}
    told = [r for r in plan.why if room is None or r.constraint in rank]
    if room is not None:
        told.sort(key=lambda r: rank[r.constraint])
    left, shown = room or 0, []
    for reason in told:
        took = _lines(reason_text(reason), INDENT)
        if room is None or took <= left:
            shown.append(reason)
            left -= took
    if not (shown or plan.estimate.traffic):
        shown = sorted(told, key=lambda r: len(reason_text(r)))[:1]
    for i, reason in enumerate(shown):
        yield "" if i else "why", reason_text(reason)


def _few(points: Sequence[ServingPoint]) -> Sequence[ServingPoint]:
    """Both ends of a front, and its middle."""
    n = len(points)
    return points if n < 4 else (points[0], points[n // 2], points[-1])


def front(points: Sequence[ServingPoint], plan: ServingPlan) -> Block:
    """Least time per token against most tokens/s/chip; under a given rate, against chips."""
    rate = bool(plan.workload.rate)
    alike = all(p.hardware == plan.hardware.name for p in points)
    money = any(p.usd_per_million_output_tokens is not None for p in points)
    heads = [
        ">token",
        ">chips" if rate else ">tok/s/chip",
        *[">$/M out"] * money,
        ">first",
        ">batch",
    ]
    rows = [
        [
            units.show_seconds(p.tpot_s),
            f"{p.n_chips:,}" if rate else _rate(p.tokens_per_s_per_chip),
            *[f"{p.usd_per_million_output_tokens or 0.0:,.2f}"] * money,
            units.show_seconds(p.ttft_s),
            f"{p.batch:,}",
            deployment(p, name=not alike),
        ]
        for p in points
    ]
    readers = any(p.prefill_mesh for p in points)
    return table([*heads, f"front: deployment{' + readers' * readers}"], rows)


def deployment(point: ServingPoint, *, name: bool) -> str:
    """`2 × tensor 8 + 1 reads, h100:8`."""
    many = f"{point.engines:,} of " if point.engines > 1 else ""
    text = f"{many}{mesh_text({**point.mesh, 'data': 1})}"
    if point.prefill_mesh:
        text += f" + {point.prefill_engines}"
    return f"{text}, {point.hardware}" if name else text


def ranked(plans: Sequence[ServingPlan]) -> Block:
    """One line for each of several plans, best first."""
    rows = [
        [
            f"{place}",
            units.show_seconds(plan.estimate.tpot_s),
            units.show_seconds(plan.estimate.ttft_s),
            _rate(plan.estimate.tokens_per_s_per_chip),
            f"{plan.strategy.n_chips:,}",
            f"{plan.estimate.decode.batch:,}",
            servers(plan.strategy.servers)
            + (f" + {servers(plan.strategy.prefill)}" if plan.strategy.prefill else ""),
        ]
        for place, plan in enumerate(plans, 1)
    ]
    heads = [">", ">token", ">first", ">tokens/s/chip", ">chips", ">batch", "engines"]
    return table(heads, rows)
