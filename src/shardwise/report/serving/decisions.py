"""The decisions that lead to a serving plan, each as a question and its answer."""

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
from shardwise.report.words import counted, duration

# How KV caches are sharded over more chips than there are heads -> its phrase.
KV_SPLITS = {"copied": "copied", "batch": "split by sequence", "sequence": "split by length"}


def decision_text(decision: Decision) -> str:
    """A decision as a question with its answer."""
    match decision:
        case OneChip():
            answer = "yes" if decision.met else "no"
            return (
                f"One chip? {units.show_bytes(decision.weights_bytes)} of {decision.dtype} weights "
                f"and {units.show_bytes(decision.cache_bytes)} of KV cache per sequence, of "
                f"{units.show_bytes(decision.limit)}: {answer}."
            )
        case Machine():
            return _machine(decision)
        case ServingTensor():
            return (
                f"Which tensor degree? Links keep up to {decision.compute_limit:.0f} while FLOPs "
                f"bind (F ÷ α over {counted(decision.axes, 'axis')}), to {decision.limit:,.0f} "
                f"while HBM binds at batch {decision.rows:,} (F ÷ (B β), without latency). "
                f"Chosen: {decision.degree}."
            )
        case Caches():
            return _caches(decision)
        case Experts():
            return _experts(decision)
        case Batch():
            return _batch(decision)
        case PrefillEngines():
            return _prefill(decision)
        case Decision(step="context"):
            position = "below" if decision.met else "beyond: no batch is bound by FLOPs"
            return (
                f"Which context? From {decision.limit:,.0f} tokens KV reads bind at every batch "
                f"(2 P W ÷ (C kv)); {decision.number:,.0f} is {position}."
            )
    raise TypeError(f"no sentence for {type(decision).__name__}")


def _machine(decision: Machine) -> str:
    text = f"How many chips? {decision.smallest} holds the weights"
    if decision.sequences:
        text += f" and {counted(decision.sequences, 'sequence')}"
    engines = counted(decision.degree or 1, "engine")
    return (
        f"{text}; more chips read the same bytes faster. Chosen: {engines} of "
        f"{counted(int(decision.number), 'chip')}."
    )


def _caches(decision: Caches) -> str:
    n_heads = int(decision.limit)
    tensor = int(decision.number)
    heads = counted(n_heads, "head")
    if decision.latent:
        heads = "1 latent vector"
    text = f"How are caches split? {heads} over tensor {tensor}"
    if decision.met:
        return f"{text}."
    copies = tensor // min(tensor, n_heads)
    return f"{text}; over the other {copies} they are {KV_SPLITS[decision.kv]}."


def _experts(decision: Experts) -> str:
    degree = decision.degree or 1
    text = (
        f"How are experts split? A step of {decision.rows:,.0f} tokens uses "
        f"{decision.number:,.0f} of {decision.limit:,.0f}, {decision.experts_per_token} per token; "
        f"they are spread over {degree}"
    )
    if degree > 1:
        text += ", attention by sequence"
    return f"{text}."


def _batch(decision: Batch) -> str:
    text = "Which batch? "
    if decision.kv_batch:
        text += f"KV reads exceed weight reads from {decision.kv_batch:,}, "
    return (
        f"{text}FLOPs bind matmuls from {decision.limit:,.0f} tokens per step, "
        f"{decision.max_batch:,} fit. Chosen: {decision.degree:,}."
    )


def _prefill(decision: PrefillEngines) -> str:
    engines = "separate"
    if decision.degree is None:
        engines = "the same"
    return (
        f"Separate prefill engines? A prompt takes {duration(decision.step_s)}, "
        f"{duration(decision.at_mfu_step_s)} at {decision.mfu:.0%} MFU: {decision.number:.2g} and "
        f"{decision.at_mfu_servers:.2g} prefill engines would feed one decode engine. Chosen: "
        f"{engines} engines."
    )
