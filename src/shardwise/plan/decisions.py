"""The decisions that lead to a plan, in order, each with the numbers that it compares.

`report.training.decisions` and `report.serving.decisions` write their sentences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One decision on the way to a plan.

    Args:
        step: the subject: chip, node, slice, sequences, data, tensor, pipe, context, expert,
            memory; for serving also machine, kv, batch, prompts.
        number, limit: the compared numbers, both in `unit`.
        met: whether the number is within the limit.
        degree: the plan's degree of the split in question; None where there is none.
    """

    step: str
    number: float
    limit: float
    unit: str
    met: bool
    degree: int | None


def comparison(
    step: str,
    number: float,
    limit: float,
    unit: str,
    degree: int | None = None,
    *,
    at_least: bool = False,
) -> dict[str, Any]:
    """Fields of every decision that compares a number with a limit.

    Args:
        at_least: the limit is a lower bound; otherwise an upper bound.
    """
    met = number <= limit
    if at_least:
        met = number >= limit
    return {
        "step": step,
        "number": number,
        "limit": limit,
        "unit": unit,
        "met": met,
        "degree": degree,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity(Decision):
    """Training state against the memory of a chip, a node or a slice.

    Args:
        n_chips: of that chip, node or slice.
        of_several: the machine has more than one of them.
    """

    n_chips: int
    of_several: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequences(Decision):
    """Sequences against chips; the plan splits one over `chips_per_sequence` chips."""

    chips_per_sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorDegree(Decision):
    """The degree up to which compute hides tensor parallelism.

    Args:
        node: GPUs of a node; None on a torus.
        mixed_tokens, mixed_threshold: tokens per chip against the threshold of FSDP with tensor
            parallelism; None where FSDP alone hides its traffic.
    """

    node: int | None
    mixed_tokens: float | None
    mixed_threshold: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages(Decision):
    """Microbatches of a pipeline; `data_lacks` is the factor of tokens that data sharding lacks."""

    data_lacks: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring(Decision):
    """Sequence lengths from which attention hides a ring of `ring` chips."""

    ring: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertWidth(Decision):
    """Expert widths from which compute hides the all-to-alls over `chips` chips."""

    chips: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory(Decision):
    """Bytes that a chip needs with the chosen remat policy and microbatches."""

    remat: str
    n_microbatches: int
    micro_batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OneChip(Decision):
    """Weights and the KV cache of one sequence against the memory of a chip."""

    dtype: str
    weights_bytes: float
    cache_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine(Decision):
    """The smallest machine of an engine, which holds `sequences`, against the plan's machine."""

    smallest: str
    sequences: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingTensor(Decision):
    """Limits of tensor parallelism: `compute_limit` while FLOPs bind, otherwise `limit`."""

    compute_limit: float
    axes: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Caches(Decision):
    """KV heads against the tensor degree, and the split `kv` of caches beyond them."""

    kv: str
    latent: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts(Decision):
    """Experts that the `rows` tokens of a pass route to, of all experts."""

    rows: float
    experts_per_token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch(Decision):
    """Sequences of a pass against the number from which FLOPs bind the matmuls."""

    kv_batch: int | None
    max_batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillEngines(Decision):
    """Prefill engines per decode engine, predicted and at an assumed MFU."""

    step_s: float
    mfu: float
    at_mfu_step_s: float
    at_mfu_servers: float
