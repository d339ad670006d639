"""The decisions that lead to a deployment, in words."""

from __future__ import annotations

from shardwise import units
from shardwise.plan.decisions import (
    Batch,
    Caches,
    Decision,
    Experts,
    Machine,
    OneChip,
    PrefillEngines,
    ServingTensor,
)

ms = units.show_seconds


def decision_text(decision: Decision) -> str:
    """One decision as a question with its answer."""
    match decision:
        case OneChip():
            return (
                f"One chip? {units.show_bytes(decision.weights_bytes)} of {decision.dtype} weights "
                f"and {units.show_bytes(decision.cache_bytes)} of KV cache per sequence, of "
                f"{units.show_bytes(decision.limit)}: {'yes' if decision.met else 'no'}."
            )
        case Machine():
            return _machine(decision)
        case ServingTensor():
            axes = "axis" if decision.axes == 1 else "axes"
            return (
                f"How far? While FLOPs bind, links keep up to tensor {decision.compute_limit:.0f} "
                f"(F ÷ α over {decision.axes} {axes}); while HBM does, to {decision.limit:,.0f} at "
                f"batch {decision.rows:,} (F ÷ (B β), latency aside). Taken: {decision.degree}."
            )
        case Caches():
            return _caches(decision)
        case Experts():
            return _experts(decision)
        case Batch():
            return _batch(decision)
        case PrefillEngines():
            return _prompts(decision)
        case Decision(step="context"):
            side = "below" if decision.met else "beyond: no batch is bound by FLOPs"
            return (
                f"How long? From {decision.limit:,.0f} tokens KV reads bind at every batch "
                f"(2 P W ÷ (C kv)); with {decision.number:,.0f} it is {side}."
            )
    raise TypeError(f"no words for {type(decision).__name__}")


def _machine(decision: Machine) -> str:
    sequences = f" and {decision.sequences:,} sequences" if decision.sequences else ""
    return (
        f"How many? {decision.smallest} holds the weights{sequences}; more chips read the same "
        f"bytes faster. Taken: {decision.number:,.0f} per engine, {decision.degree:,} of them."
    )


def _caches(decision: Caches) -> str:
    heads = int(decision.limit)
    which = "1 latent" if decision.latent else f"{heads:,} head{'s' * (heads > 1)}"
    tensor = int(decision.number)
    text = f"Caches? {which} over tensor {tensor}"
    if decision.met:
        return f"{text}."
    ways = {"copied": "copied", "batch": "split by sequence"}.get(decision.kv, "split by length")
    return f"{text}; over the other {tensor // min(tensor, heads)} they are {ways}."


def _experts(decision: Experts) -> str:
    degree = decision.degree or 1
    attention = ", attention by sequence" if degree > 1 else ""
    return (
        f"Experts? A pass of {decision.rows:,.0f} tokens meets {decision.number:,.0f} of "
        f"{decision.limit:,.0f}, {decision.experts_per_token} per token; they are spread over "
        f"{degree}{attention}."
    )


def _batch(decision: Batch) -> str:
    kv = ""
    if decision.kv_batch:
        kv = f"KV reads exceed weight reads from {decision.kv_batch:,}, "
    return (
        f"Which batch? {kv}FLOPs bind matmuls from {decision.limit:,.0f} per pass, "
        f"{decision.max_batch:,} fit. Taken: {decision.degree:,}."
    )


def _prompts(decision: PrefillEngines) -> str:
    kind = "the same" if decision.degree is None else "separate"
    return (
        f"Prompts? {ms(decision.step_s)} each, {ms(decision.at_mfu_step_s)} at "
        f"{decision.mfu:.0%} MFU: {decision.number:.2g} and {decision.at_mfu_servers:.2g} prefill "
        f"engines would feed one decode engine. Taken: {kind} engines."
    )
