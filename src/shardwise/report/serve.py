"""A serving plan on one screen: the answer, what a token takes, memory, why, and the front."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardwise import units
from shardwise.plan.serve_value import Servers, ServingPlan, ServingPoint
from shardwise.report.serve_details import details
from shardwise.report.style import Block, bar, labelled, quiet, strong, table
from shardwise.report.words import chips, mesh_text, percent, seconds_span

SHOWN_REASONS = 3  # and all under -v
SMALL = 0.01  # parts of a pass below this share of it have no bar
NAMES = {"kv": "KV cache"}
# Reasons in the order in which a screen has room for them; those that the bars tell come last.
FIRST = ("disaggregation", "speculation", "batch", "chips", "gathered", "tensor")


def blocks(
    plan: ServingPlan, *, verbose: bool = False, saved: str | None = None
) -> Iterator[Block]:
    """The whole answer; `verbose` adds placement, rules, memory and operations."""
    yield strong(headline(plan))
    yield labelled(_times(plan))
    yield table(["", ">", "", ""], _bars(plan, verbose))
    yield labelled(_reasons(plan, verbose))
    yield front(plan.pareto, rate=bool(plan.workload.rate))
    if verbose:
        yield from details(plan)
    last = "type  -o plan.json keeps it  ·  --top 5 lists others  ·  -v shows its tables"
    yield f"saved {saved}" if saved else quiet(last)


def headline(plan: ServingPlan) -> str:
    """What binds, the deployment, and what it gives."""
    told, strategy = plan.estimate, plan.strategy
    money = told.usd_per_million_tokens
    dollars = f", {units.show_dollars(money.output)} per million output tokens" if money else ""
    reads = f" + {servers(strategy.prefill)} for prompts" if strategy.prefill else ""
    return (
        f"{told.bound}. {servers(strategy.servers)}{reads}, {_dtypes(plan)}: "
        f"{units.show_seconds(told.tpot_s)} a token, "
        f"{_rate(told.tokens_per_s_per_chip)} tokens/s/chip{dollars}."
    )


def servers(these: Servers) -> str:
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


def _times(plan: ServingPlan) -> Iterator[tuple[str, str]]:
    told, work = plan.estimate, plan.workload
    decode, prefill = told.decode, told.prefill
    ms = units.show_seconds
    step = decode.step_s
    each = f"{decode.batch:,} sequences × {decode.context:,.0f} tokens"
    yield (
        "pass",
        f"{seconds_span(step.lower, step.upper)} (roofline, all communication hidden / none) for "
        f"{each}; {_source(plan)}",
    )
    text = f"{ms(told.ttft_s)} mean; a prompt of {work.prompt or work.context:,} takes "
    text += seconds_span(prefill.step_s.lower, prefill.step_s.upper)
    text += f", at {percent(prefill.at_mfu.mfu)} MFU {ms(prefill.at_mfu.step_s)}"
    if prefill.at_mfu.servers:
        text += f" ({prefill.at_mfu.servers:.2g} engines for prompts to one that generates)"
    yield "first", text
    yield "in all", _total(plan)


def _total(plan: ServingPlan) -> str:
    """Rates, chips and money of the deployment, and the rule that took it."""
    told, work = plan.estimate, plan.workload
    text = f"{chips(plan.strategy.n_chips)}, {_rate(told.tokens_per_s)} tokens/s"
    if told.requests_per_s is not None:
        text += f", {_rate(told.requests_per_s)} requests/s"
    if work.rate and told.most_requests_per_s:
        text += f" of {_rate(told.most_requests_per_s)} ({percent(told.utilisation)})"
    if told.usd_per_hour is not None:
        text += f", {units.show_dollars(told.usd_per_hour)} an hour"
    money = told.usd_per_million_tokens
    if money and money.input is not None:
        text += f", {units.show_dollars(money.input)} per million input tokens"
    return f"{text}. Taken: {plan.strategy.rule}"


def _source(plan: ServingPlan) -> str:
    rates = plan.estimate.rates
    return "peak rates" if rates.name == "peak" else f"rates of {rates.name}, {rates.as_of}"


def _bars(plan: ServingPlan, verbose: bool) -> Iterator[list[str]]:
    took = plan.estimate.decode.parts
    whole = plan.estimate.decode.step_s.expected
    for name, seconds in took.items():
        if seconds >= SMALL * whole or verbose:
            share = percent(seconds / whole)
            label = f"  {NAMES.get(name, name)}"
            yield [label, units.show_seconds(seconds), bar(seconds, whole), share]
    memory = plan.memory
    decode = plan.estimate.decode
    text = (
        f"of {units.show_gib(memory.capacity)} HBM: weights {units.show_gib(memory.weights)}, "
        f"KV {units.show_gib(memory.kv_cache)}; {decode.max_batch:,} fit"
    )
    yield ["  memory", units.show_gib(memory.total), bar(memory.total, memory.capacity), text]


def _reasons(plan: ServingPlan, verbose: bool) -> Iterator[tuple[str, str]]:
    told = list(plan.why)
    if not verbose:
        rank = {name: i for i, name in enumerate(FIRST)}
        told = sorted((r for r in told if r.constraint in rank), key=lambda r: rank[r.constraint])[
            :SHOWN_REASONS
        ]
    for i, reason in enumerate(told):
        yield "" if i else "why", reason.text


def front(points: Sequence[ServingPoint], *, rate: bool = False) -> Block:
    """Least time per token against most tokens/s/chip; under a given rate, against chips."""
    heads = [">a token", ">chips" if rate else ">tokens/s/chip", ">$/M out", ">first", ">batch"]
    return table([*heads, "front: deployment"], [_row(p, rate) for p in points])


def _row(point: ServingPoint, rate: bool) -> list[str]:
    money = point.usd_per_million_output_tokens
    return [
        units.show_seconds(point.tpot_s),
        f"{point.n_chips:,}" if rate else _rate(point.tokens_per_s_per_chip),
        "–" if money is None else f"{money:,.2f}",
        units.show_seconds(point.ttft_s),
        f"{point.batch:,}",
        deployment(point),
    ]


def deployment(point: ServingPoint) -> str:
    """`2 × tensor 8, h100:8`, with the engines for prompts."""
    many = f"{point.engines:,} × " if point.engines > 1 else ""
    text = f"{many}{mesh_text({**point.mesh, 'data': 1})}"
    if point.prefill_mesh:
        text += f" + {point.prefill_engines} to read"
    return f"{text}, {point.hardware}"


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
