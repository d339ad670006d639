"""Reasons of a training plan as numbers: what limits it, and by how much.

`report.training.reasons` turns them into sentences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from shardwise.plan.schema.common import Loss, Reason
from shardwise.search.training.runtime_limits import RuntimeLimit


@dataclass(frozen=True, slots=True, kw_only=True)
class Communication(Reason):
    """Time of the collectives, compared with the time of all other work, at peak rates.

    Args:
        on_chip_s: seconds of a step without communication.
        traffic_s: role -> seconds of its collectives; roles without traffic are left out.
        hidden: roles most of whose traffic overlaps with compute.
    """

    constraint: Literal["communication"] = "communication"
    on_chip_s: float
    traffic_s: dict[str, float]
    hidden: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSplit(Reason):
    """The best mesh without tensor parallelism, or with it if the plan has none.

    Args:
        constraint: "tensor" if the plan has tensor parallelism, else "data".
        mesh, fits, step_s: the other mesh, whether it fits in memory, and its expected step.
        role, traffic_s: role of its slowest collectives, and their seconds at peak rates.
        on_chip_s: seconds of its step without communication, at peak rates.
        loses_on: why it is worse than the plan.
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
    """Tokens per chip and microbatch, compared with those that hide pure data sharding.

    Book §5 and §12.

    Args:
        tokens: the plan's tokens per chip and microbatch.
        needed: the threshold: peak FLOP/s over `bytes_per_s`, times E/k for an MoE.
        bytes_per_s: bandwidth at which a chip receives gathered weights.
        network: the network that carries them: "ici", "scale_out" or "node".
        axes: number of torus axes that carry them; 1 on GPUs.
        n_experts, experts_per_token: E and k; both 1 without experts.
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
    """Tokens per slice, compared with those that hide gradient all-reduces over DCN. Book §5.

    DCN is the data-center network, which connects the slices.

    Args:
        roles: mesh roles that cross slices.
        tokens: the plan's tokens per slice.
        needed: the threshold: peak FLOP/s over `bytes_per_s`.
        bytes_per_s: DCN bandwidth of a chip.
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
        share: share of the expected step that chips idle in the bubble.
        chunks: chunks of layers on each stage.
        spare: layer slots that stay empty because the stages do not divide the layers.
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
    """The overlap that the expected step assumes, and the step without it.

    Args:
        hidden_s: role -> seconds of its communication that overlap with compute.
        without_s: seconds of the plan's step without overlap.
        best_mesh: the best mesh without overlap; None if it is the plan's.
        best_s: seconds of its step without overlap.
    """

    constraint: Literal["overlap"] = "overlap"
    hidden_s: dict[str, float]
    without_s: float
    best_mesh: dict[str, int] | None
    best_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Padding(Reason):
    """A vocabulary that is padded to a multiple of `tensor`."""

    constraint: Literal["padding"] = "padding"
    vocab: int
    tensor: int
    padded: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KvHeads(Reason):
    """Fewer key/value heads than `tensor`: each head is replicated over `copies` chips."""

    constraint: Literal["kv_heads"] = "kv_heads"
    n_kv_heads: int
    copies: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MaxSeq(Reason):
    """Sequences that are longer than the model's maximum."""

    constraint: Literal["max_seq"] = "max_seq"
    seq: int
    max_seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRoom(Reason):
    """Bytes that the plan needs of a chip.

    Args:
        total: bytes needed.
        capacity: bytes of the chip's memory.
        reserved: bytes of the capacity that must stay free.
    """

    constraint: Literal["memory"] = "memory"
    total: float
    capacity: float
    reserved: float
    remat: str
    n_microbatches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPrediction(Reason):
    """Layers of multi-token prediction, and what they add to the plan without them.

    Args:
        layers: number of layers.
        step_s: seconds that they add to the expected step.
        memory_bytes: bytes that they add to the chip with most memory in use.
        on_last_stage: whether a pipeline's last stage has them.
    """

    constraint: Literal["token_prediction"] = "token_prediction"
    layers: int
    step_s: float
    memory_bytes: float
    on_last_stage: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class UsualSettings(Reason):
    """Settings of kernels that published runs have, and the plan because none were given.

    Args:
        kernels: the settings.
        framework, chip: of the runs.
        n_stating: runs that state them.
        n_runs: runs since the month `since`.
        overlap: what the runs overlap, and the plan, beyond the framework's defaults.
    """

    constraint: Literal["kernels"] = "kernels"
    kernels: tuple[str, ...]
    framework: str
    chip: str
    n_stating: int
    n_runs: int
    since: str
    overlap: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NotTrained(Reason):
    """Something of the plan that the trainer does not run."""

    constraint: Literal["runtime"] = "runtime"
    limit: RuntimeLimit


@dataclass(frozen=True, slots=True, kw_only=True)
class NotInFramework(Reason):
    """Something of the plan that the framework which it is for does not run.

    Args:
        framework: its name.
        asked: the part of the layout.
        has: what the framework has in its place.
    """

    constraint: Literal["framework"] = "framework"
    framework: str
    asked: str
    has: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NoPipelines(Reason):
    """Pipelines were not searched, because the trainer runs none of the model.

    Args:
        n_groups: groups of different layers in the model.
    """

    constraint: Literal["pipelines"] = "pipelines"
    n_groups: int


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
    "token_prediction": TokenPrediction,
    "kernels": UsualSettings,
    "runtime": NotTrained,
    "framework": NotInFramework,
    "pipelines": NoPipelines,
}
