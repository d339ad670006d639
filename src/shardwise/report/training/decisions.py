"""The decisions that lead to a training plan, as sentences."""

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
from shardwise.report.words import counted


def decision_text(decision: Decision) -> str:
    """A decision as a sentence: a number, the threshold it is compared with, and what follows."""
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
            verdict = "long enough" if decision.met else "too short"
            return (
                f"Attention over {decision.number:,.0f} tokens is {verdict} to hide a ring of "
                f"{decision.ring}, which needs {decision.limit:,.0f}: {_degree(decision)}."
            )
        case ExpertWidth():
            verdict = "wide enough" if decision.met else "too narrow"
            return (
                f"Experts of width {decision.number:,.0f} are {verdict} to hide their all-to-alls "
                f"over {decision.chips} chips, which needs {decision.limit:,.0f}: "
                f"{_degree(decision)}."
            )
        case Memory():
            return _memory(decision)
        case Decision(step="data"):
            return _data(decision)
    raise TypeError(f"no sentence for {type(decision).__name__}")


def _capacity(decision: Capacity) -> str:
    state = units.show_gib(decision.number)
    capacity = units.show_gib(decision.limit)
    if decision.step != "chip":
        conclusion = "the model spans several"
        if decision.met:
            conclusion = "it could hold the model"
        return f"A {decision.step} of {decision.n_chips:,} chips holds {capacity}: {conclusion}."
    text = f"Weights, gradients and optimizer state take {state}; one chip holds {capacity}"
    if not decision.met:
        text += f": at least {math.ceil(decision.number / decision.limit):,} chips share them"
    elif decision.of_several:
        text += ": they fit, so more chips only add speed"
    return f"{text}."


def _sequences(decision: Sequences) -> str:
    text = f"{decision.number:,.0f} sequences on {decision.limit:,.0f} chips: "
    if decision.met:
        per_chip = decision.number / decision.limit
        return f"{text}{per_chip:,.0f} per chip, so data sharding alone is possible."
    chips = math.ceil(decision.limit / decision.number)
    return (
        f"{text}tensor, context or pipe must split each sequence over {chips:,} chips; this plan "
        f"splits it over {decision.chips_per_sequence:,}."
    )


def _data(decision: Decision) -> str:
    conclusion = "FSDP gathers hide without tensor parallelism"
    if not decision.met:
        shortfall = decision.limit / decision.number
        conclusion = f"FSDP alone is short by ×{shortfall:.1f}; fewer gathers or a second axis help"
    return (
        f"{decision.number:,.0f} tokens per chip and microbatch, of {decision.limit:,.0f} needed: "
        f"{conclusion}."
    )


def _tensor(decision: TensorDegree) -> str:
    text = f"Tensor traffic hides up to degree {decision.limit:.1f}"
    if decision.node is not None:
        text += f" and stays within a node of {decision.node}"
    if decision.mixed_tokens is not None:
        text += (
            f"; with FSDP it needs {decision.mixed_threshold:,.0f} tokens per chip, there are "
            f"{decision.mixed_tokens:,.0f}"
        )
    return f"{text}: {_degree(decision)}."


def _stages(decision: Stages) -> str:
    text = "Pipeline stages"
    if decision.data_lacks > 1:
        text = f"Data sharding would need ×{decision.data_lacks:.1f} the tokens"
    text = f"{text}: {_degree(decision)}"
    if (decision.degree or 1) == 1:
        return f"{text}."
    verdict = "enough" if decision.met else "too few"
    return (
        f"{text}, {decision.number:,.0f} microbatches, {verdict} for a bubble below 10 % "
        f"({decision.limit:,.0f})."
    )


def _memory(decision: Memory) -> str:
    microbatches = counted(decision.n_microbatches, "microbatch")
    return (
        f"{units.show_gib(decision.number)} of {units.show_gib(decision.limit)}: remat "
        f"{decision.remat}, {microbatches} of {decision.micro_batch:,}."
    )


def _degree(decision: Decision) -> str:
    """The degree of the plan's split: `tensor 4`, `no tensor`."""
    degree = decision.degree or 1
    if degree == 1:
        return f"no {decision.step}"
    return f"{decision.step} {degree:,}"
