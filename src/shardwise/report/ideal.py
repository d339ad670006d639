"""The envelope of a model on chips, for the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from shardwise.formulas.envelope import Envelope, Load
from shardwise.formulas.inference import DecodeStep
from shardwise.report.style import Block, labelled, quiet, strong
from shardwise.units import DAY, show_bytes, show_count, show_seconds

BOOK_MFU = 0.4  # of a training run; book §6


@dataclass(frozen=True, slots=True, kw_only=True)
class Ideal:
    """The answer of `shardwise ideal`.

    Args:
        smallest: the smallest machine that holds the weights and one sequence.
        dtype: of the weights.
        context: tokens of a sequence.
        hbm_bytes: of all chips.
        tokens: of a training run; None without one.
        run_s: seconds of that run at peak.
    """

    model: str
    hardware: str
    smallest: str | None
    dtype: str
    context: int
    load: Load
    envelope: Envelope
    hbm_bytes: float
    tokens: float | None = None
    run_s: float | None = None


def blocks(answer: Ideal) -> Iterator[Block]:
    """The largest batch in a sentence, then each number with the formula that gives it."""
    yield strong(_headline(answer))
    yield labelled(_lines(answer))
    yield quiet("peak rates; no activations, communication or software: shardwise plan counts them")


def _headline(answer: Ideal) -> str:
    best = answer.envelope
    name = f"{answer.model} {answer.dtype} on {answer.hardware}"
    if not best.full:
        return f"{name}: the weights do not fit for serving."
    return (
        f"{name}: at most {best.max_batch:,} sequences of {answer.context:,} tokens, "
        f"{show_seconds(best.full.step_s)} a token, {_rates(best.full)}."
    )


def _lines(answer: Ideal) -> Iterator[tuple[str, str]]:
    load = answer.load
    best = answer.envelope
    yield "smallest", f"{answer.smallest} (weights and one sequence: {best.fewest_chips} chips)"
    yield (
        "batch",
        f"⌊(N·HBM − weights) / KV⌋ = ({show_bytes(answer.hbm_bytes)} − "
        f"{show_bytes(load.weight_bytes)}) / {show_bytes(load.kv_bytes)} = {best.max_batch:,}",
    )
    yield "step", "T = B·KV / (N·W) + max(2·B·P / (N·C), weights / (N·W))"
    yield "  B 1", _step(best.single)
    if best.limit_s is not None:
        yield f"  ≤ {show_seconds(best.limit_s)}", _within(best)
    if best.full:
        yield f"  B {best.max_batch:,}", _step(best.full)
    if answer.tokens and answer.run_s:
        yield (
            "train",
            f"6·P·D / (N·C) = 6 × {show_count(load.active)} × {show_count(answer.tokens)} tokens: "
            f"{_days(answer.run_s)} at peak, {_days(answer.run_s / BOOK_MFU)} at {BOOK_MFU:.0%} "
            "MFU (bf16)",
        )


def _step(step: DecodeStep) -> str:
    slower = "weights" if step.weights_s >= step.math_s else "math"
    reading = max(float(step.weights_s), float(step.math_s))
    return (
        f"{show_seconds(step.step_s)} = KV {show_seconds(step.kv_s)} + {slower} "
        f"{show_seconds(reading)}; {_rates(step)}"
    )


def _within(best: Envelope) -> str:
    if best.within is None:
        return f"no batch: one sequence takes {show_seconds(best.single.step_s)}"
    return f"B {best.within.batch:,}: {_step(best.within)}"


def _rates(step: DecodeStep) -> str:
    return f"{step.tokens_per_s:,.0f} tokens/s, {step.tokens_per_s_per_chip:,.0f} a chip"


def _days(seconds: float) -> str:
    return f"{seconds / DAY:,.1f} days"
