"""The book's chapter on training as a table of contents: each way to split, and when it pays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shardwise.formulas import thresholds
from shardwise.hardware import catalog_chip
from shardwise.report.style import Block, labelled, quiet, strong

WIDTH_OF_70B = 28672  # F of LLaMA-3-70B, the book's example


@dataclass(frozen=True, slots=True)
class Topic:
    """One way to split a training step.

    Args:
        what: what is split, and what has to be sent.
        when: when it pays, with the book's numbers for TPU v5p in bf16.
        cases: names of the cases about it, without the chapter.
    """

    what: str
    when: str
    cases: tuple[str, ...]


def training_blocks(case_ids: Sequence[str]) -> Iterator[Block]:
    """The chapter on training for a reader: its topics, each with its cases, then other cases."""
    yield strong("Chapter 5, training: how to split a step, and from when each way pays.")
    yield quiet("C FLOP/s, W bytes/s a chip sends on one ICI axis, alpha = C/W; B tokens, N chips")
    told: set[str] = set()
    for name, topic in training_topics().items():
        ids = [f"training-{case}" for case in topic.cases]
        told.update(ids)
        yield strong(name)
        lines = [("  what", topic.what), ("  when", topic.when), ("  cases", ", ".join(ids))]
        yield labelled(line for line in lines if line[1])
    others = [case_id for case_id in case_ids if case_id not in told]
    yield strong("Worked problems")
    yield labelled([("  cases", ", ".join(others))])
    yield quiet("type  shardwise book training-dp-threshold  ·  shardwise plan answers for yours")


def training_topics() -> dict[str, Topic]:
    """The ways to split a training step, in the order of the chapter."""
    chip = catalog_chip("v5p").quoted("book")
    alpha = thresholds.alpha(chip, "ici", "bf16")
    one_axis = thresholds.data_parallel_tokens(alpha)
    three_axes = thresholds.data_parallel_tokens(alpha, n_axes=3)
    degree = thresholds.tensor_limit(WIDTH_OF_70B, alpha, element_bytes=2.0)
    mixed = thresholds.mixed_tokens(alpha, WIDTH_OF_70B, axes=2)
    per_slice = thresholds.alpha(chip, "dcn", "bf16")
    return {
        "data parallelism": Topic(
            "every chip has all weights and a part of the batch; gradients are summed once a "
            "step (AllReduce).",
            "weights, gradients and optimizer fit one chip (96 GB: 9.6B parameters), and B/N > "
            f"alpha / axes: {one_axis:,.0f} tokens a chip on one axis, {three_axes:,.0f} on three.",
            ("alpha", "dp-threshold", "dp-times", "adam-limit", "q3-pure-dp"),
        ),
        "FSDP, ZeRO-3": Topic(
            "weights, gradients and optimizer are sharded too; each layer's weights are gathered "
            "(AllGather) before use, gradients scattered. ZeRO-1 shards the optimizer alone, "
            "ZeRO-2 gradients too; both send as much as data parallelism.",
            f"the same B/N > {three_axes:,.0f} on three axes, for a fraction of the memory.",
            ("fsdp-same-threshold", "fsdp-2m", "deepseek-v2-chips", "zero-equal-comm"),
        ),
        "tensor parallelism": Topic(
            "each matrix is split; activations are gathered and summed in every layer.",
            f"Y < F / alpha on an axis, whatever the batch: {degree:.0f}-way for F = "
            f"{WIDTH_OF_70B:,} (LLaMA-3-70B), twice that on two axes.",
            ("tp-limit", "tp-required-f", "tp-int8"),
        ),
        "FSDP with tensor": Topic(
            "both at once: FSDP gathers less of each matrix, tensor smaller activations.",
            f"fewer tokens a chip than FSDP alone takes: B/N > 4 alpha^2 / (Mx My F), "
            f"{mixed:,.0f} tokens on two axes of FSDP and one of tensor.",
            ("mixed-threshold-sum", "mixed-gain", "mixed-figure-batch", "mixed-2m-later"),
        ),
        "pipeline": Topic(
            "layers are divided over stages; activations pass from stage to stage, and stages "
            "wait (the bubble, (p - 1)/(m + p - 1) of a step with m microbatches).",
            "links are slow (GPUs across nodes) and batches are large; rarely on a TPU's ICI. "
            "Below 10 % of bubble: m > 9 (p - 1).",
            (),
        ),
        "several slices": Topic(
            "data parallelism over the data-center network, any of the above inside a slice.",
            f"a slice has B > C / W_dcn: {per_slice:,.0f} tokens.",
            ("dcn-feb", "two-pod-batch", "ten-pods"),
        ),
    }
