"""The numbers of the page that open: formula, numbers put in, section of the book, line of code."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shardwise import units
from shardwise.arrays import Num
from shardwise.plan.schema.json_io import AnyPlan
from shardwise.plan.schema.serving import ServingPlan
from shardwise.plan.schema.training import Plan
from shardwise.plan.serving.rebuild import rebuild
from shardwise.plan.training.operations import busiest_stage
from shardwise.units import show_bytes, show_count, show_gib, show_seconds

SECTIONS = {
    1: "All about rooflines",
    3: "Sharded matrices",
    4: "Transformer math",
    5: "Training",
    6: "Training LLaMA 3",
    7: "Inference",
    8: "Serving LLaMA 3",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A number with its derivation.

    Args:
        name: what other parts of the page open it by.
        formula: in the book's letters.
        filled: the formula with the numbers put in.
        section: of the book.
        source: file and line of the function that computes it.
        primary: whether the answer bar shows it.
    """

    name: str
    label: str
    value: str
    formula: str
    filled: str
    section: str
    source: str
    primary: bool = False


@functools.cache
def source_of(path: str) -> str:
    """File and line of a function, by the path of its module and its name."""
    module, _, name = path.rpartition(".")
    function = getattr(importlib.import_module(module), name)
    file = Path(inspect.getsourcefile(function) or "")
    root = Path(__file__).parents[2]
    return f"{file.relative_to(root).as_posix()}:{inspect.getsourcelines(function)[1]}"


def _number(
    name: str,
    label: str,
    value: str,
    formula: str,
    filled: str,
    section: int,
    function: str,
    *,
    primary: bool = False,
) -> Number:
    return Number(
        name=name,
        label=label,
        value=value,
        formula=formula,
        filled=filled,
        section=f"§{section} {SECTIONS[section]}",
        source=source_of(f"shardwise.{function}"),
        primary=primary,
    )


def numbers(plan: AnyPlan) -> list[Number]:
    """All numbers of a plan that open, those of the answer bar first."""
    if isinstance(plan, ServingPlan):
        return [*_serving(plan)]
    return [*_step(plan), *_bounds(plan), *_run(plan)]


def _step(plan: Plan) -> Iterator[Number]:
    estimate, work, chips = plan.estimate, plan.workload, plan.hardware.n_chips
    parts = " + ".join(f"{name} {show_seconds(s)}" for name, s in estimate.expected_s.items())
    yield _number(
        "step",
        "expected step",
        show_seconds(plan.step.expected),
        "T = T_compute + T_bubble + T_update + Σ exposed T_comms",
        f"{parts} = {show_seconds(plan.step.expected)} ±{estimate.rates.spread:.0%} "
        f"(rates of {estimate.rates.name} runs, {estimate.rates.as_of})",
        5,
        "estimate.training.step.step_time",
        primary=True,
    )
    yield _number(
        "bounds",
        "bounds of the step",
        f"{show_seconds(plan.step.lower)} – {show_seconds(plan.step.upper)}",
        "max(T_math, T_comms) at peak rates ≤ T ≤ Σ T at expected rates, T_comms too",
        f"at peak rates, all communication hidden: {show_seconds(plan.step.lower)}; at rates of "
        f"{estimate.rates.name} runs, none hidden: {show_seconds(plan.step.upper)}",
        1,
        "formulas.roofline.bounds",
        primary=True,
    )
    flops = estimate.mfu * plan.step.expected * chips * _peak(plan)
    yield _number(
        "mfu",
        "MFU",
        f"{estimate.mfu:.0%}",
        "MFU = FLOPs / (T · N · C)",
        f"{show_count(flops)}FLOPs / ({show_seconds(plan.step.expected)} × {chips:,} chips × "
        f"{units.show_rate(_peak(plan), 'FLOP')}) = {estimate.mfu:.1%}",
        4,
        "formulas.flops.mfu",
        primary=True,
    )
    yield _memory(plan)
    yield _number(
        "tokens",
        "tokens a step",
        show_count(work.tokens_per_step),
        "B · T",
        f"{work.batch:,} sequences × {work.seq:,} = {work.tokens_per_step:,}",
        4,
        "workload.Train",
    )


def _peak(plan: AnyPlan) -> float:
    compute = str(plan.strategy.precision["compute"])
    return plan.hardware.figures.get(f"peak.{compute}") or plan.hardware.figures["peak.bf16"]


def _memory(plan: AnyPlan) -> Number:
    memory = plan.memory
    room = memory.capacity - memory.margin
    parts = " + ".join(f"{name} {show_gib(n)}" for name, n in memory.largest_parts.items())
    return _number(
        "memory",
        "memory per chip",
        f"{memory.total / room:.0%} of {show_gib(room)}",
        "M = weights/shards + gradients + optimizer + activations + KV",
        f"{parts} = {show_gib(memory.total)}; the chip has {show_gib(memory.capacity)}, of "
        f"which {show_gib(memory.margin)} stay free",
        4,
        "estimate.training.memory.peak.step_memory"
        if isinstance(plan, Plan)
        else "estimate.serving.memory.engine_memory",
        primary=True,
    )


def _bounds(plan: Plan) -> Iterator[Number]:
    estimate = plan.estimate
    operations = (plan.operations, plan.model.n_layers, plan.layout)
    flops = busiest_stage(*operations, lambda op: op.flops)
    yield _number(
        "T_math",
        "T_math",
        show_seconds(estimate.compute_s),
        "T_math = FLOPs on a chip / C",
        f"{show_count(flops)}FLOPs / {units.show_rate(_peak(plan), 'FLOP')} = "
        f"{show_seconds(estimate.compute_s)} (kernels run masked tiles too)",
        1,
        "formulas.roofline.math_s",
    )
    n_bytes = busiest_stage(*operations, lambda op: op.hbm_bytes)
    bandwidth = plan.hardware.figures["hbm.bandwidth"]
    yield _number(
        "T_hbm",
        "T_hbm",
        show_seconds(estimate.hbm_s),
        "T_hbm = bytes of matmuls / W_hbm",
        f"{show_bytes(n_bytes)} / {units.show_rate(bandwidth, 'B')} = "
        f"{show_seconds(estimate.hbm_s)} for its matmuls",
        1,
        "formulas.roofline.transfer_s",
    )
    for role, seconds in estimate.comm_s.items():
        received = sum(op.network_bytes for op in plan.operations if op.role == role)
        yield _number(
            f"T_comms {role}",
            f"T_comms of {role}",
            show_seconds(seconds),
            "T_comms = Σ bytes / W of the axis' links + hops · latency",
            f"{show_bytes(received)} received by a chip over "
            f"{plan.strategy.placement.get(role, 'its links')}: {show_seconds(seconds)}, exposed "
            f"{show_seconds(estimate.expected_s.get(role, 0.0))}",
            3,
            "ops.collective.time_s",
        )
    if estimate.bubble_fraction:
        stages, batches = plan.strategy.mesh["pipe"], plan.strategy.n_microbatches
        yield _number(
            "bubble",
            "pipeline bubble",
            f"{estimate.bubble_fraction:.1%}",
            "(p − 1) / (m · v + p − 1), by the schedule's own simulation",
            f"p = {stages} stages, m = {batches} microbatches, v = {plan.strategy.virtual}, "
            f"{plan.strategy.schedule}",
            5,
            "estimate.training.step.step_time",
        )


def _run(plan: Plan) -> Iterator[Number]:
    estimate, work = plan.estimate, plan.workload
    chips = plan.hardware.n_chips
    if estimate.run_s is None or estimate.chip_hours is None or work.tokens is None:
        return
    yield _number(
        "run",
        "whole run",
        show_seconds(estimate.run_s),
        "run = T · tokens / tokens a step",
        f"{show_seconds(plan.step.expected)} × {show_count(work.tokens)} / "
        f"{show_count(work.tokens_per_step)} = {estimate.run_s / units.DAY:.1f} days",
        6,
        "formulas.cost.run",
        primary=True,
    )
    if estimate.usd is not None:
        price = plan.hardware.figures["price.chip_hour"]
        yield _number(
            "usd",
            "cost",
            units.show_dollars(estimate.usd),
            "chips · hours · price",
            f"{chips:,} × {estimate.run_s / units.HOUR:,.0f} h × ${price:g} = "
            f"{show_count(estimate.chip_hours)} chip-hours = {units.show_dollars(estimate.usd)}",
            6,
            "formulas.cost.run",
            primary=True,
        )
    at_mfu = estimate.at_mfu
    yield _number(
        "at_mfu",
        f"step at {at_mfu.mfu:.0%} MFU",
        show_seconds(at_mfu.step_s),
        "T = FLOPs / (N · C · MFU)",
        f"at the book's {at_mfu.mfu:.0%}: {show_seconds(at_mfu.step_s)}",
        6,
        "formulas.flops.compute_s",
    )


def _serving(plan: ServingPlan) -> Iterator[Number]:
    estimate, decode = plan.estimate, plan.estimate.decode
    parts = " + ".join(f"{name} {show_seconds(s)}" for name, s in decode.parts.items())
    yield _number(
        "tpot",
        "time per output token",
        show_seconds(estimate.tpot_s),
        "T = max(bytes of weights + KV / W_hbm, FLOPs / C) + T_comms + software",
        f"{parts} = {show_seconds(decode.step_s.expected)} a pass of {decode.batch:,} sequences, "
        f"prefill between passes included: {show_seconds(estimate.tpot_s)}",
        7,
        "estimate.serving.steady_state.decode_token_s",
        primary=True,
    )
    yield _number(
        "ttft",
        "time to first token",
        show_seconds(estimate.ttft_s),
        "TTFT = wait + 2 · P · T / (N · C · MFU)",
        f"prefill of {estimate.prefill.tokens:,.0f} tokens: "
        f"{show_seconds(estimate.prefill.step_s.expected)} at {estimate.prefill.mfu:.0%} MFU",
        7,
        "formulas.inference.prefill_s",
        primary=True,
    )
    yield _number(
        "throughput",
        "tokens/s per chip",
        f"{estimate.tokens_per_s_per_chip:,.0f}",
        "B / (T · N)",
        f"{estimate.tokens_per_s:,.0f} tokens/s on {plan.strategy.n_chips:,} chips",
        7,
        "estimate.serving.steady_state.colocated",
        primary=True,
    )
    yield _memory(plan)
    if estimate.usd_per_million_tokens:
        prices = estimate.usd_per_million_tokens
        per_hour = estimate.usd_per_hour or 0.0
        whole = 1e6 * per_hour / units.HOUR / estimate.tokens_per_s
        yield _number(
            "usd",
            "$ per million output tokens",
            f"${prices.output:.2f}",
            "share of decoding · price of an hour · 10⁶ / (3600 · tokens/s)",
            f"{prices.output / whole:.0%} × ${per_hour:,.2f} × 10⁶ / (3600 × "
            f"{estimate.tokens_per_s:,.0f}) = ${prices.output:.2f}; input tokens bear the share of "
            f"prefill: ${prices.input:.2f} a million",
            8,
            "formulas.cost.usd_per_million_tokens",
            primary=True,
        )
    yield _max_batch(plan)
    experts = ""
    if plan.model.n_experts:
        experts = f"E / k = {plan.model.n_experts:,} / {plan.model.experts_per_token:,}; "
    yield _number(
        "critical_batch",
        "batch where FLOPs bind",
        f"{decode.critical_batch:,.0f}",
        "B_crit = C / W_hbm · bytes per weight / 2" + (" · E / k" if plan.model.n_experts else ""),
        f"{experts}below {decode.critical_batch:,.0f} sequences, reading weights takes longest",
        7,
        "formulas.roofline.critical_batch",
    )


def _max_batch(plan: ServingPlan) -> Number:
    """Sequences that fit, from bytes in full: rounded, they would not give the number shown."""
    server = rebuild(plan)[1].server
    empty, single = server.memory(0), server.memory(1)
    room = empty.capacity - empty.margin - empty.weights - empty.other
    logits = single.other - empty.other
    decode, unit = plan.estimate.decode, server.batch_unit
    shards = decode.kv_bytes_per_sequence / float(single.kv_cache)
    share = f", 1/{shards:.0f} of it on a chip" if shards.is_integer() else ""
    whole = f"a multiple of {unit:,}" if unit > 1 else "a whole number"
    return _number(
        "max_batch",
        "sequences that fit",
        f"{decode.max_batch:,}",
        "(HBM − kept free − weights − activations, software) / (KV cache + logits of a sequence)",
        f"({_exact(empty.capacity)} − {_exact(empty.margin)} − {_exact(empty.weights)} − "
        f"{_exact(empty.other)}) / ({_exact(single.kv_cache)} + {_exact(logits)}) = "
        f"{room / (single.kv_cache + logits):,.2f}, rounded down to {whole}: {decode.max_batch:,} "
        f"sequences of {plan.workload.context:,} tokens in an engine; bytes of its fullest chip. "
        f"All of a sequence's KV cache: {_exact(decode.kv_bytes_per_sequence)} bytes{share}",
        7,
        "estimate.serving.memory.max_batch",
    )


def _exact(n_bytes: Num) -> str:
    """Bytes with every digit, to a thousandth."""
    return f"{float(n_bytes):,.3f}".removesuffix(".000")
