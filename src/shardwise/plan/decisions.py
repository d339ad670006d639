"""The decisions that lead to a plan, each with the numbers that it compares.

`report.training.decisions` and `report.serving.decisions` turn them into sentences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One decision on the way to a plan: it compares a number with a limit.

    Args:
        step: what the decision is about: chip, node, slice, sequences, data, tensor, pipe, context,
            expert, memory; for serving also machine, kv, batch, prompts.
        number, limit: the compared numbers, both in `unit`.
        met: whether the number is within the limit.
        degree: the plan's degree of the parallelism in question; None if there is no such degree.
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
    """The fields of `Decision`, by name.

    Args:
        at_least: whether the limit is a lower bound; otherwise it is an upper bound.
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
    """Does the training state fit in the memory of one chip, node or slice?

    Args:
        n_chips: number of chips in that unit.
        of_several: whether the machine has more than one such unit.
    """

    n_chips: int
    of_several: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequences(Decision):
    """Are there as many sequences as chips?

    Args:
        chips_per_sequence: chips that the plan splits one sequence over.
    """

    chips_per_sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorDegree(Decision):
    """Does compute hide the traffic of tensor parallelism at the plan's degree?

    Args:
        node: number of GPUs in a node; None on a torus.
        mixed_tokens, mixed_threshold: tokens per chip, and the number from which compute hides FSDP
            combined with tensor parallelism; None if compute hides FSDP alone.
    """

    node: int | None
    mixed_tokens: float | None
    mixed_threshold: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages(Decision):
    """Are there enough microbatches for a small pipeline bubble?

    Args:
        data_lacks: tokens per chip that pure data sharding needs, over those that there are.
    """

    data_lacks: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring(Decision):
    """Is the sequence long enough for attention to hide the traffic of a ring?

    Args:
        ring: number of chips in the ring.
    """

    ring: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertWidth(Decision):
    """Are experts wide enough for compute to hide their all-to-alls?

    Args:
        chips: number of chips that an all-to-all runs over.
    """

    chips: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory(Decision):
    """Does the plan fit in the memory of a chip, with its remat policy and microbatches?"""

    remat: str
    n_microbatches: int
    micro_batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OneChip(Decision):
    """Do the weights and the KV cache of one sequence fit in the memory of one chip?

    Args:
        dtype: dtype of the weights.
        weights_bytes, cache_bytes: bytes of the weights, and of the KV cache.
    """

    dtype: str
    weights_bytes: float
    cache_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine(Decision):
    """Is the plan's engine as small as the smallest machine that fits?

    Args:
        smallest: name of the smallest machine.
        sequences: sequences that fit on it.
    """

    smallest: str
    sequences: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingTensor(Decision):
    """Is the tensor degree below the largest useful one?

    Args:
        compute_limit: largest degree if FLOPs bound the matmuls. `limit` is the largest degree if
            reading weights bounds them.
        axes: torus axes that `tensor` runs over.
        rows: sequences of a pass.
    """

    compute_limit: float
    axes: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Caches(Decision):
    """Are there as many KV heads as chips of `tensor`?

    Args:
        kv: how KV caches are sharded over chips beyond the heads, one of `KV_SPLITS`.
        latent: whether the model has latent attention.
    """

    kv: str
    latent: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts(Decision):
    """Does a pass route tokens to more than half of the experts?

    Args:
        rows: tokens of a pass.
        experts_per_token: experts that each token is routed to.
    """

    rows: float
    experts_per_token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch(Decision):
    """Are there enough sequences in a pass for FLOPs to bound the matmuls?

    Args:
        kv_batch: sequences of an engine from which reading KV caches takes longer than the matmuls;
            None if it never does.
        max_batch: sequences that fit in the memory of an engine.
    """

    kv_batch: int | None
    max_batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillEngines(Decision):
    """Does one prefill engine keep up with a decode engine?

    Args:
        step_s: expected seconds of a prefill.
        mfu, at_mfu_step_s: an assumed MFU, and the seconds of a prefill at it.
        at_mfu_servers: prefill engines per decode engine at this MFU.
    """

    step_s: float
    mfu: float
    at_mfu_step_s: float
    at_mfu_servers: float
