"""Reasons of a serving plan, its losses and its rule, in words."""

from __future__ import annotations

from shardwise import units
from shardwise.plan.schema.common import Reason
from shardwise.plan.schema.serving import ServingPoint
from shardwise.plan.schema.serving_reasons import (
    CriticalBatch,
    DecodePass,
    Disaggregation,
    GatheredWeights,
    Prompt,
    Speculation,
    TensorLimit,
    TwiceTheChips,
)
from shardwise.report.words import mesh_text
from shardwise.search.serving.choose import Rule

ms = units.show_seconds
# What takes longest of a pass.
BOUNDS = {
    "weights": "HBM-bound (weights)",
    "kv": "HBM-bound (KV cache)",
    "flops": "Compute-bound",
    "network": "Network-bound",
    "software": "Bound by kernels and host",
}
SMALL = 0.01  # kernels and host below this share of a pass go without saying


def reason_text(reason: Reason) -> str:
    """A reason of a plan as a sentence."""
    match reason:
        case DecodePass():
            return _pass(reason)
        case CriticalBatch():
            return _batch(reason)
        case Disaggregation():
            return _disaggregation(reason)
        case Prompt():
            return _prompt(reason)
        case TwiceTheChips():
            return (
                f"Twice the chips ({reason.hardware}, {mesh_text(reason.mesh)}) for the same "
                f"batch: {ms(reason.tpot_s)} per token ({ms(reason.least_s)} with communication "
                f"hidden), ×{reason.throughput:.2f} the tokens/s/chip."
            )
        case Speculation():
            return (
                f"{reason.drafted} drafted tokens at {reason.acceptance:.0%} acceptance: "
                f"{reason.tokens_per_pass:.2f} tokens per pass, {ms(reason.tpot_s)} per token, "
                f"{ms(reason.without_s)} without."
            )
        case TensorLimit():
            return _tensor(reason)
        case GatheredWeights():
            return (
                "FSDP, as in training, would gather all weights for every token: fsdp "
                f"{reason.fsdp} takes {ms(reason.gathered_s)} per pass instead of "
                f"{ms(reason.pass_s)}."
            )
    raise TypeError(f"no words for {type(reason).__name__}")


def _tensor(reason: TensorLimit) -> str:
    axes = f"{reason.axes} axes × " if reason.axes > 1 else ""
    return (
        f"While HBM binds, links keep up to tensor {reason.limit:,.0f} ({axes}F {reason.d_ff:,} ÷ "
        f"(batch {reason.rows:,} × β {reason.beta:.1f}), latency aside); this plan has "
        f"{reason.tensor}."
    )


def point_text(point: ServingPoint) -> str:
    """What another deployment loses on, or how it differs."""
    loss = point.loses_on
    if loss.kind == "dtype":
        return f"{point.dtype} weights"
    if loss.kind == "time":
        return f"{ms(loss.amount)} more {loss.part} per pass"
    if loss.kind == "batch":
        return f"{point.batch:,} sequences per engine"
    return "equally fast"


def rule_text(rule: Rule) -> str:
    """`fewest chips that serve 20/s with p99 TTFT ≤ 1 s`."""
    if rule.aim == "knee":
        return "knee, most tokens/s/chip × tokens/s of a sequence"
    text = "most tokens/s/chip" if rule.aim == "throughput" else "fewest chips"
    if rule.rate:
        text += f" that serve {rule.rate:g}/s"
    which = f"p{100 * rule.percentile:g}" if rule.percentile else "mean"
    named = (("TTFT", rule.ttft_s), ("TPOT", rule.tpot_s))
    bounds = [f"{name} ≤ {ms(seconds)}" for name, seconds in named if seconds]
    return f"{text} with {which} {' and '.join(bounds)}" if bounds else text


def _pass(reason: DecodePass) -> str:
    text = (
        f"A pass takes {ms(reason.weights_s)} to read {units.show_bytes(reason.weights_bytes)} of "
        "weights per chip"
    )
    if reason.kv_s:
        text += f" and {ms(reason.kv_s)} for {units.show_bytes(reason.kv_bytes)} of KV cache"
    total = sum(reason.network_s.values())
    if total:
        by_role = ", ".join(f"{role} {ms(s)}" for role, s in reason.network_s.items())
        text += f"; it waits {ms(total)} for the network ({by_role})"
    if reason.software_s > SMALL * reason.pass_s:
        text += f", {ms(reason.software_s)} for kernels and host"
    return f"{text}."


def _batch(reason: CriticalBatch) -> str:
    text = f"Each engine runs {reason.batch:,} sequence{'s' * (reason.batch > 1)}; "
    text += f"{reason.max_batch:,} fit."
    products = "matmuls"
    if reason.kv_batch:
        text += f" KV reads exceed weight reads from {reason.kv_batch:,.0f};"
    else:
        products = "Matmuls"
    return (
        f"{text} {products} become compute-bound at {reason.critical_batch:,.0f} per pass (now "
        f"{reason.in_flight:,})."
    )


def _disaggregation(reason: Disaggregation) -> str:
    kind = "With" if reason.disaggregated else "Without"
    if reason.n_chips is None:
        return f"{kind} separate prefill engines nothing on these chips meets the bounds."
    return (
        f"{kind} separate prefill engines: {reason.n_chips:,} chips, {ms(reason.tpot_s)} per "
        f"token, TTFT {ms(reason.ttft_s)}, {reason.tokens_per_s_per_chip:,.0f} tokens/s/chip."
    )


def _prompt(reason: Prompt) -> str:
    text = f"Prefill of {reason.tokens:,} tokens takes {ms(reason.step_s)}"
    if reason.cached:
        text += f", {reason.cached:.0%} of them cached"
    if reason.transfer_s is not None:
        text += f", moving their KV cache {ms(reason.transfer_s)}"
    if reason.busy:
        text += f"; prefill takes {reason.busy:.0%} of the time"
    if reason.servers and reason.transfer_s is None:
        text += f"; {reason.servers:.2g} prefill engines would feed one decode engine"
    return f"{text}; most of it is {reason.longest}."
