"""The decisions that lead to a plan, one after the other, each with the numbers it compares.

`report.training.decisions` and `report.serving.decisions` word them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One decision of the path.

    Args:
        step: what is decided: chip, node, sequences, data, tensor, pipe, context, expert, memory;
            of serving also machine, kv, batch, prompts.
        number, limit: what was compared, both in `unit`.
        met: the number is within the limit.
        degree: what the plan took of the split that the question leads to, None where to none.
    """

    step: str
    number: float
    limit: float
    unit: str
    met: bool
    degree: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity(Decision):
    """Whether a chip, a node or a slice, of so many chips, holds the state of training."""

    n_chips: int
    of_several: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequences(Decision):
    """Sequences against chips, and over how many chips the plan splits one."""

    chips_per_sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorDegree(Decision):
    """How far tensor parallelism hides.

    Args:
        node: GPUs of the node that it stays in.
        mixed_tokens, mixed_threshold: tokens per chip for FSDP and tensor together, where FSDP
            alone does not hide.
    """

    node: int | None
    mixed_tokens: float | None
    mixed_threshold: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages(Decision):
    """Microbatches of a pipeline; data sharding lacks its tokens by a factor."""

    data_lacks: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring(Decision):
    """Lengths from which attention hides a ring of so many chips."""

    ring: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertWidth(Decision):
    """Widths from which experts hide their exchanges over so many chips."""

    chips: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory(Decision):
    """What a chip needs, and how the batch is cut for it."""

    remat: str
    n_microbatches: int
    micro_batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OneChip(Decision):
    """Weights and the cache of one sequence against the memory of a chip."""

    dtype: str
    weights_bytes: float
    cache_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine(Decision):
    """The smallest machine of an engine, with the sequences it holds, against the plan's."""

    smallest: str
    sequences: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingTensor(Decision):
    """The limits of tensor parallelism: `compute_limit` while FLOPs bind, else `limit`."""

    compute_limit: float
    axes: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Caches(Decision):
    """Heads of caches against `tensor`, and how caches lie on chips beyond them."""

    kv: str
    latent: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts(Decision):
    """Experts that a pass of so many tokens meets, of all."""

    rows: float
    experts_per_token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch(Decision):
    """Sequences of a pass against those from which FLOPs bind products."""

    kv_batch: int | None
    max_batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillEngines(Decision):
    """Engines for prompts to one for decoding, predicted and at a given MFU."""

    step_s: float
    mfu: float
    at_mfu_step_s: float
    at_mfu_servers: float
