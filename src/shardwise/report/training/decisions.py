"""The decisions that lead to a training plan, in words."""

from __future__ import annotations

import math

from shardwise import units
from shardwise.plan.decisions import (
    Capacity,
    Decision,
    ExpertWidth,
    Memory,
    Ring,
    Sequences,
    Stages,
    TensorDegree,
)


def decision_text(decision: Decision) -> str:
    """One decision as a sentence."""
    match decision:
        case Capacity():
            return _capacity(decision)
        case Sequences():
            return _sequences(decision)
        case TensorDegree():
            return _tensor(decision)
        case Stages():
            return _stages(decision)
        case Ring():
            side = "enough" if decision.met else "too short"
            return (
                f"Sequences of {decision.number:,.0f} tokens are {side} for attention to hide a "
                f"ring of {decision.ring}, which takes {decision.limit:,.0f}: {_taken(decision)}."
            )
        case ExpertWidth():
            side = "wide enough" if decision.met else "too narrow"
            return (
                f"Experts of width {decision.number:,.0f} are {side} to hide their exchanges over "
                f"{decision.chips} chips, which takes {decision.limit:,.0f}: {_taken(decision)}."
            )
        case Memory():
            return _memory(decision)
        case Decision(step="data"):
            return _data(decision)
    raise TypeError(f"no words for {type(decision).__name__}")


def _capacity(decision: Capacity) -> str:
    state, room = units.show_gib(decision.number), units.show_gib(decision.limit)
    if decision.step != "chip":
        follows = "it could hold the model" if decision.met else "the model spans several"
        return f"A {decision.step} of {decision.n_chips:,} chips holds {room}: {follows}."
    text = f"Weights, gradients and optimizer state take {state}; one chip holds {room}"
    if not decision.met:
        text += f": at least {math.ceil(decision.number / decision.limit):,} chips share them"
    elif decision.of_several:
        text += ": they fit, more chips are for speed"
    return f"{text}."


def _sequences(decision: Sequences) -> str:
    text = f"{decision.number:,.0f} sequences on {decision.limit:,.0f} chips: "
    if decision.met:
        each = decision.number / decision.limit
        return f"{text}{each:,.0f} per chip, data sharding alone is possible."
    chips = math.ceil(decision.limit / decision.number)
    return (
        f"{text}tensor, context or pipe must split each over {chips:,}; this plan splits it over "
        f"{decision.chips_per_sequence:,}."
    )


def _data(decision: Decision) -> str:
    follows = "FSDP gathers hide, tensor is not needed for them"
    if not decision.met:
        wait = decision.limit / decision.number
        follows = f"pure FSDP waits ×{wait:.1f}; fewer gathers or a second axis help"
    return (
        f"{decision.number:,.0f} tokens per chip and microbatch, of {decision.limit:,.0f} needed: "
        f"{follows}."
    )


def _tensor(decision: TensorDegree) -> str:
    text = f"Tensor traffic hides up to {decision.limit:.1f} ways"
    if decision.node is not None:
        text += f" and stays within a node of {decision.node}"
    if decision.mixed_tokens is not None:
        text += (
            f"; with FSDP it needs {decision.mixed_threshold:,.0f} tokens per chip, there are "
            f"{decision.mixed_tokens:,.0f}"
        )
    return f"{text}: {_taken(decision)}."


def _stages(decision: Stages) -> str:
    text = "Pipeline stages"
    if decision.data_lacks > 1:
        text = f"Data sharding would need ×{decision.data_lacks:.1f} the tokens"
    text = f"{text}: {_taken(decision)}"
    if (decision.degree or 1) == 1:
        return f"{text}."
    side = "enough" if decision.met else "too few"
    return (
        f"{text}, {decision.number:,.0f} microbatches, {side} for a bubble below 10 % "
        f"({decision.limit:,.0f})."
    )


def _memory(decision: Memory) -> str:
    plural = "es" if decision.n_microbatches > 1 else ""
    return (
        f"{units.show_gib(decision.number)} of {units.show_gib(decision.limit)}: remat "
        f"{decision.remat}, {decision.n_microbatches:,} microbatch{plural} of "
        f"{decision.micro_batch:,}."
    )


def _taken(decision: Decision) -> str:
    degree = decision.degree or 1
    return f"{decision.step} {degree:,}" if degree > 1 else f"no {decision.step}"
