"""Reasons of a training plan as numbers: what binds it, and by how much.

`report.training.reasons` writes their sentences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from shardwise.plan.schema.common import Loss, Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Communication(Reason):
    """Traffic at peak rates against the work on the chip.

    Args:
        traffic_s: seconds by role, without roles that have no traffic.
        hidden: roles whose traffic overlaps with other work.
    """

    constraint: Literal["communication"] = "communication"
    on_chip_s: float
    traffic_s: dict[str, float]
    hidden: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSplit(Reason):
    """The best split without tensor parallelism, or with it where the plan has none.

    Args:
        constraint: "tensor" where the plan has tensor parallelism, else "data".
        mesh, fits, step_s: the other split, whether it fits, its expected step.
        role, traffic_s: its slowest traffic at peak rates, against `on_chip_s` of work.
    """

    constraint: Literal["tensor", "data"]
    mesh: dict[str, int]
    fits: bool
    step_s: float
    role: str
    traffic_s: float
    on_chip_s: float
    loses_on: Loss


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensPerChip(Reason):
    """The book's threshold for pure data sharding: tokens per chip and microbatch. §5, §12.

    Args:
        needed: peak FLOP/s over the bandwidth of gathered weights, times E/k for an MoE.
        network: "ici" (over `axes` axes), "scale_out" or "node".
        n_experts, experts_per_token: 1 without experts.
    """

    constraint: Literal["tokens_per_chip"] = "tokens_per_chip"
    tokens: float
    needed: float
    bytes_per_s: float
    network: Literal["ici", "scale_out", "node"]
    axes: int
    n_experts: int
    experts_per_token: int
    n_microbatches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TokensPerSlice(Reason):
    """Tokens per slice that hide gradient all-reduces over the data-center network. §5.

    Args:
        roles: mesh roles that cross slices.
        needed: peak FLOP/s over bytes/s of the data-center network.
    """

    constraint: Literal["dcn"] = "dcn"
    roles: tuple[str, ...]
    n_slices: int
    tokens: float
    needed: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bubble(Reason):
    """The pipeline bubble.

    Args:
        share: of the step.
        spare: layer slots that stay empty where layers do not divide over the stages.
    """

    constraint: Literal["bubble"] = "bubble"
    share: float
    schedule: str
    n_microbatches: int
    micro_batch: int
    stages: int
    chunks: int
    spare: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap(Reason):
    """The overlap that the expected step assumes.

    Args:
        hidden_s: seconds by role that overlap with other work.
        without_s: the step without overlap.
        best_mesh, best_s: the best split without overlap; `best_mesh` is None where the plan's is.
    """

    constraint: Literal["overlap"] = "overlap"
    hidden_s: dict[str, float]
    without_s: float
    best_mesh: dict[str, int] | None
    best_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Padding(Reason):
    """A vocabulary padded to a multiple of `tensor`."""

    constraint: Literal["padding"] = "padding"
    vocab: int
    tensor: int
    padded: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KvHeads(Reason):
    """Key/value heads replicated over `copies` chips."""

    constraint: Literal["kv_heads"] = "kv_heads"
    n_kv_heads: int
    copies: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxSeq(Reason):
    """Sequences longer than the model's maximum."""

    constraint: Literal["max_seq"] = "max_seq"
    seq: int
    max_seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRoom(Reason):
    """Bytes of a chip; `reserved` of its capacity stays free."""

    constraint: Literal["memory"] = "memory"
    total: float
    capacity: float
    reserved: float
    remat: str
    n_microbatches: int


TRAINING_REASONS: dict[str, type[Reason]] = {
    "communication": Communication,
    "tensor": TensorSplit,
    "data": TensorSplit,
    "tokens_per_chip": TokensPerChip,
    "dcn": TokensPerSlice,
    "bubble": Bubble,
    "overlap": Overlap,
    "padding": Padding,
    "kv_heads": KvHeads,
    "max_seq": MaxSeq,
    "memory": MemoryRoom,
}
