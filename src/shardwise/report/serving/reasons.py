"""The reasons of a serving plan, its alternatives, and the rule that chose it, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardwise import units
from shardwise.plan.schema.common import Reason
from shardwise.plan.schema.serving import ServingPoint
from shardwise.plan.schema.serving_reasons import (
    CriticalBatch,
    DecodePass,
    Disaggregation,
    GatheredWeights,
    LongContext,
    NotServed,
    Prompt,
    Speculation,
    TensorLimit,
    TwiceTheChips,
)
from shardwise.report.words import counted, duration, listed, mesh_text
from shardwise.search.serving.rule import USUAL_TPOT_S, USUAL_TTFT_S, Rule

# The longest part of a decode step -> what the deployment is bound by.
BOUNDS = {
    "weights": "HBM-bound (weights)",
    "kv": "HBM-bound (KV cache)",
    "flops": "Compute-bound",
    "network": "Network-bound",
    "software": "Bound by kernels and host",
}
SMALL_SOFTWARE = 0.01  # of a decode step; less time in kernels and host is not mentioned


def reason_text(reason: Reason) -> str:
    """A reason of a plan as a sentence or two."""
    match reason:
        case DecodePass():
            return _decode_step(reason)
        case CriticalBatch():
            return _batch(reason)
        case Disaggregation():
            return _disaggregation(reason)
        case Prompt():
            return _prefill(reason)
        case TwiceTheChips():
            return (
                f"Twice the chips ({reason.hardware}, {mesh_text(reason.mesh)}) for the same "
                f"batch: TPOT {duration(reason.tpot_s)} ({duration(reason.least_s)} with "
                f"communication hidden), ×{reason.throughput:.2f} the tokens/s/chip."
            )
        case Speculation():
            return (
                f"{reason.drafted} drafted tokens at {reason.acceptance:.0%} acceptance: "
                f"{reason.tokens_per_pass:.2f} tokens per step, TPOT {duration(reason.tpot_s)} "
                f"instead of {duration(reason.without_s)}."
            )
        case TensorLimit():
            return _tensor(reason)
        case LongContext():
            return (
                f"Sequences of {reason.context:,} tokens exceed the {reason.max_seq:,} that the "
                "model is specified for: engines refuse them by default, and answers get worse."
            )
        case NotServed():
            return f"shardwise serve does not run {listed(reason.names)} yet."
        case GatheredWeights():
            return (
                "FSDP, as in training, would gather all weights for every token: fsdp "
                f"{reason.fsdp} takes {duration(reason.gathered_s)} per step instead of "
                f"{duration(reason.pass_s)}."
            )
    raise TypeError(f"no sentence for {type(reason).__name__}")


def _tensor(reason: TensorLimit) -> str:
    axes = ""
    if reason.axes > 1:
        axes = f"{reason.axes} axes × "
    return (
        f"While HBM binds, links keep up to tensor {reason.limit:,.0f} ({axes}F {reason.d_ff:,} ÷ "
        f"(batch {reason.rows:,} × β {reason.beta:.1f}), without latency); this plan has "
        f"{reason.tensor}."
    )


def point_text(point: ServingPoint) -> str:
    """The main respect in which a deployment of the Pareto front differs from the plan's."""
    loss = point.loses_on
    if loss.kind == "dtype":
        return f"{point.dtype} weights"
    if loss.kind == "time":
        return f"{duration(loss.amount)} more {loss.part} per step"
    if loss.kind == "batch":
        return f"{point.batch:,} sequences per engine"
    return "equally fast"


def rule_text(rule: Rule) -> str:
    """The rule that chose a deployment: `fewest chips that serve 20/s with p99 TTFT ≤ 1 s`."""
    machines = " on any number of chips" if rule.any_machine else ""
    batch = f" of {counted(rule.batch, 'sequence')}" if rule.batch else ""
    if rule.aim == "knee":
        return (
            f"knee of throughput and speed{machines}, as no engine generates a token{batch} in "
            f"{duration(rule.tpot_s or 0.0)}"
        )
    if rule.aim == "cheapest":
        tpot = duration(rule.tpot_s or 0.0)
        return f"cheapest token{machines} with TPOT ≤ {tpot}, as no bound is given"
    text = "fewest chips"
    if rule.aim == "throughput":
        text = "highest tokens/s/chip"
    if rule.rate:
        text += f" that serve {rule.rate:g}/s"
    if rule.users:
        text += f" that serve {counted(rule.users, 'user')}"
    bounds = []
    for name, seconds in (("TTFT", rule.ttft_s), ("TPOT", rule.tpot_s)):
        if seconds:
            bounds.append(f"{name} ≤ {duration(seconds)}")
    if bounds:
        statistic = "mean"
        if rule.percentile:
            statistic = f"p{100 * rule.percentile:g}"
        text += f" with {statistic} {' and '.join(bounds)}"
    if rule.usual:
        text += f", {_usual_text(rule)}"
    return text


def _usual_text(rule: Rule) -> str:
    """Which bounds are usual ones: `usual bounds, as none is given`."""
    if len(rule.usual) > 1:
        return f"{'loosened' if rule.unmet else 'usual'} bounds, as none is given"
    return f"of which the job gives no {rule.usual[0].upper()}"


def loosened_text(rule: Rule) -> str:
    """That the usual bounds of a rate were not kept, and which are instead; empty if they were."""
    if not rule.unmet:
        return ""
    usual = _bounds_text(rule.unmet, {"ttft": USUAL_TTFT_S, "tpot": USUAL_TPOT_S})
    text = f"no deployment that was tried keeps the usual {usual}: "
    if not rule.usual:
        return f"{text}planned without"
    kept = _bounds_text(rule.usual, {"ttft": rule.ttft_s or 0.0, "tpot": rule.tpot_s or 0.0})
    return f"{text}loosened to {kept}"


def _bounds_text(names: Sequence[str], seconds: Mapping[str, float]) -> str:
    return " and ".join(f"{name.upper()} ≤ {duration(seconds[name])}" for name in names)


def _decode_step(reason: DecodePass) -> str:
    text = (
        f"A decode step reads {units.show_bytes(reason.weights_bytes)} of weights per chip in "
        f"{duration(reason.weights_s)}"
    )
    if reason.kv_s:
        text += f" and {units.show_bytes(reason.kv_bytes)} of KV cache in {duration(reason.kv_s)}"
    network_s = sum(reason.network_s.values())
    if network_s:
        roles = [f"{role} {duration(seconds)}" for role, seconds in reason.network_s.items()]
        text += f"; it waits {duration(network_s)} for the network ({', '.join(roles)})"
    if reason.software_s > SMALL_SOFTWARE * reason.pass_s:
        text += f", {duration(reason.software_s)} for kernels and host"
    return f"{text}."


def _batch(reason: CriticalBatch) -> str:
    text = f"Each engine runs {counted(reason.batch, 'sequence')}; {reason.max_batch:,} fit. "
    if reason.kv_batch:
        text += f"KV reads exceed weight reads from {reason.kv_batch:,.0f}; matmuls"
    else:
        text += "Matmuls"
    return (
        f"{text} become compute-bound at {reason.critical_batch:,.0f} per step (now "
        f"{reason.in_flight:,})."
    )


def _disaggregation(reason: Disaggregation) -> str:
    with_or_without = "With" if reason.disaggregated else "Without"
    condition = f"{with_or_without} separate prefill engines"
    if reason.n_chips is None:
        return f"{condition} nothing on these chips meets the bounds."
    text = (
        f"{condition}: {reason.n_chips:,} chips, TTFT {duration(reason.ttft_s)}, TPOT "
        f"{duration(reason.tpot_s)}, {reason.tokens_per_s_per_chip:,.0f} tokens/s/chip"
    )
    if reason.must_gain:
        text += f" by means; on as many chips they must save {reason.must_gain:.0%} simulated"
    return f"{text}."


def _prefill(reason: Prompt) -> str:
    text = f"Prefill of {reason.tokens:,} tokens takes {duration(reason.step_s)}"
    if reason.cached:
        text += f", {reason.cached:.0%} of them cached"
    if reason.transfer_s is not None:
        text += f", the transfer of their KV cache {duration(reason.transfer_s)}"
    if reason.busy:
        text += f"; prefill takes {reason.busy:.0%} of the time"
    if reason.servers and reason.transfer_s is None:
        text += f"; {reason.servers:.2g} prefill engines would feed one decode engine"
    return f"{text}. Its longest part is {reason.longest}."
