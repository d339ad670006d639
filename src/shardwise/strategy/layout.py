"""Layouts of a training step: degrees of parallelism, microbatches, schedule, remat and offload."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from shardwise.arrays import Num, minimum
from shardwise.errors import BadShape, UnknownName, nearest, raise_all
from shardwise.strategy import schedules
from shardwise.strategy.mesh import Mesh
from shardwise.strategy.rules import TRAIN, Rules, only
from shardwise.vocabulary import (
    CONTEXT_KINDS,
    LAYER,
    NO_SCHEDULE,
    OFFLOADS,
    OVERLAPS,
    PARTS,
    REMAT_POLICIES,
    STATE_OFFLOADS,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """The choices of a layout that are not numbers of chips or microbatches.

    A search evaluates all layouts of one form at once, as arrays (`Layouts`).

    Args:
        zero: ZeRO stage: 0 shards nothing, 1 the optimizer, 2 gradients too, 3 weights too (FSDP).
        schedule: pipeline schedule; "none" without a pipeline.
        recomputed: parts of a layer that the backward pass recomputes (remat): those of a policy,
            `REMAT_POLICIES["dots"]`, or any of `PARTS`.
        remat_layers: number of layers (of the model, or of a pipeline stage) that remat applies to;
            None for all.
        sequence_parallel: whether activations between blocks are sharded over `tensor` too.
        context_kind: one of `CONTEXT_KINDS`.
        expert_tensor: number of tensor shards of one expert's matrices; None for the size of
            `tensor`. With fewer, the chips of `tensor` hold different experts, and the degree of
            expert parallelism is expert x tensor / expert_tensor.
        offload: what is moved to host memory, any of `OFFLOADS`.
        offload_layers: number of layers that offload applies to; None for all.
        overlap: communication that overlaps with compute, any of `OVERLAPS`.
        loss_chunks: chunks of a microbatch's tokens on a chip whose logits are computed one after
            the other (fused linear cross entropy). Published long contexts need it: 256k tokens of
            a 128k vocabulary have 269 GB of logits.
    """

    zero: int = 0
    schedule: str = NO_SCHEDULE
    recomputed: tuple[str, ...] = ()
    remat_layers: int | None = None
    sequence_parallel: bool = False
    context_kind: str = "gather"
    expert_tensor: int | None = None
    offload: tuple[str, ...] = ()
    offload_layers: int | None = None
    overlap: tuple[str, ...] = ()
    loss_chunks: int = 1

    @property
    def policy(self) -> str:
        """The name of the remat policy, or the recomputed parts separated by commas."""
        for name, parts in REMAT_POLICIES.items():
            if parts == self.recomputed:
                return name
        return ",".join(self.recomputed)

    @property
    def is_pipelined(self) -> bool:
        """Whether the layers are divided into pipeline stages."""
        return self.schedule != NO_SCHEDULE

    @property
    def offloads_activations(self) -> bool:
        """Whether activations, or parts of them, are moved to host memory."""
        return any(word not in STATE_OFFLOADS for word in self.offload)

    @property
    def full_remat(self) -> bool:
        """Whether remat recomputes whole layers."""
        return LAYER in self.recomputed

    @property
    def uses_collective_matmul(self) -> bool:
        """Whether matmuls send shards of tokens around `tensor` while they multiply."""
        return self.sequence_parallel and "tp_comm" in self.overlap

    def recomputes(self, part: str) -> bool:
        """Whether layers under remat recompute `part`, one of `PARTS`, in the backward pass."""
        return self.full_remat or part in self.recomputed


@dataclass(frozen=True, slots=True, kw_only=True)
class Layouts(Form):
    """Many layouts of one form: every number is an array with one element per layout.

    Args:
        sizes: mesh role -> size.
        micro_batch, n_microbatches, virtual: as in `Layout`.
    """

    sizes: Mapping[str, Num]
    micro_batch: Num
    n_microbatches: Num
    virtual: Num = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout(Form):
    """The layout of a training step.

    The global batch is micro_batch x n_microbatches x data x fsdp x expert sequences. ZeRO shards
    training state over data, fsdp and context, and that of dense weights over expert too.

    Args:
        mesh: size of each mesh role. Megatron's data-parallel degree is `data` x `fsdp` x `expert`:
            its expert parallelism uses a part of the data-parallel ranks, which is `expert` here.
        micro_batch: sequences that one data shard computes at once.
        n_microbatches: microbatches of one step, sent through a pipeline or accumulated.
        virtual: chunks of layers on each stage of an interleaved schedule; 1 for other schedules.
    """

    mesh: Mesh
    micro_batch: int = 1
    n_microbatches: int = 1
    virtual: int = 1

    def __post_init__(self) -> None:
        problems = [*_count_problems(self), *_name_problems(self)]
        raise_all(
            BadShape,
            problems
            or [*_pipeline_problems(self), *_sharding_problems(self), *_remat_problems(self)],
        )

    @property
    def sizes(self) -> dict[str, int]:
        """Mesh role -> size."""
        return self.mesh.sizes

    @property
    def data_shards(self) -> int:
        """Number of shards of the batch: data x fsdp x expert."""
        return int(data_shards(self.sizes))

    @property
    def global_batch(self) -> int:
        """Sequences in one step."""
        return self.micro_batch * self.n_microbatches * self.data_shards

    @property
    def expert_degree(self) -> int:
        """Degree of expert parallelism: the number of shards of a layer's experts."""
        return int(expert_degree(self.expert_tensor, self.sizes))


def recomputed_parts(policy: str) -> tuple[str, ...]:
    """The parts that a remat policy recomputes: the inverse of `Form.policy`.

    >>> recomputed_parts("activation,norms")
    ('norms', 'activation')

    Args:
        policy: name of a policy, or parts separated by commas.

    Raises:
        UnknownName: neither a policy nor parts.
    """
    if policy in REMAT_POLICIES:
        return REMAT_POLICIES[policy]
    words = policy.split(",")
    for word in words:
        if word not in PARTS:
            raise UnknownName("remat policy", word, (*REMAT_POLICIES, *PARTS))
    return tuple(part for part in PARTS if part in words)


def data_shards(sizes: Mapping[str, Num]) -> Num:
    """Number of shards of the batch: data x fsdp x expert."""
    return sizes["data"] * sizes["fsdp"] * sizes["expert"]


def expert_degree(expert_tensor: int | None, sizes: Mapping[str, Num]) -> Num:
    """Degree of expert parallelism: the number of shards of a layer's experts."""
    if not expert_tensor:
        return sizes["expert"]
    return sizes["expert"] * (sizes["tensor"] // expert_tensor)


def expert_sharers(expert_tensor: int | None, sizes: Mapping[str, Num]) -> Num:
    """Number of chips of `tensor` that share an expert, and so the tokens that are routed to it."""
    return minimum(expert_tensor or sizes["tensor"], sizes["tensor"])


def _count_problems(layout: Layout) -> Iterator[str]:
    counts = {
        "micro_batch": layout.micro_batch,
        "n_microbatches": layout.n_microbatches,
        "virtual": layout.virtual,
        "remat_layers": layout.remat_layers,
        "expert_tensor": layout.expert_tensor,
        "offload_layers": layout.offload_layers,
        "loss_chunks": layout.loss_chunks,
    }
    for name, count in counts.items():
        if count is not None and count < 1:
            yield f"{name} {count} is below 1."


def _name_problems(layout: Layout) -> Iterator[str]:
    if layout.zero not in range(4):
        yield f"zero {layout.zero} is not a stage of ZeRO: 0, 1, 2 or 3."
    options: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
        ("schedule", (layout.schedule,), (NO_SCHEDULE, *schedules.names())),
        ("context kind", (layout.context_kind,), CONTEXT_KINDS),
        ("recomputed part", layout.recomputed, (*PARTS, LAYER)),
        ("offload", layout.offload, OFFLOADS),
        ("overlap", layout.overlap, OVERLAPS),
    )
    for option, values, legal_values in options:
        for value in values:
            if value not in legal_values:
                yield f'unknown {option} "{value}". {nearest(value, legal_values)}'


def _pipeline_problems(layout: Layout) -> Iterator[str]:
    stages = layout.mesh.pipe
    schedule = layout.schedule
    if stages > 1 and schedule == NO_SCHEDULE:
        yield f"pipe {stages} needs a schedule: a pipeline has both or neither."
    if stages == 1 and schedule != NO_SCHEDULE:
        yield (
            f'pipe {stages} has no use for schedule "{schedule}": a pipeline has both or neither.'
        )
    if (layout.virtual > 1) != schedules.chunked(schedule):
        yield (
            f'virtual {layout.virtual} under schedule "{schedule}": interleaved stages hold 2 or '
            "more chunks, those of other schedules 1."
        )


def _sharding_problems(layout: Layout) -> Iterator[str]:
    mesh = layout.mesh
    if mesh.fsdp > 1 and layout.zero != 3:
        yield (
            f"fsdp {mesh.fsdp} with zero {layout.zero}: fsdp shards weights, which is zero 3. "
            "Ranks with replicated weights are data."
        )
    if layout.sequence_parallel and mesh.tensor == 1:
        yield "sequence_parallel with tensor 1: it shards over tensor, 2 or more."
    if layout.expert_tensor and mesh.tensor % layout.expert_tensor:
        yield f"expert_tensor {layout.expert_tensor} does not divide tensor {mesh.tensor}."


def _remat_problems(layout: Layout) -> Iterator[str]:
    if layout.full_remat and len(layout.recomputed) > 1:
        yield f"recomputed {', '.join(layout.recomputed)}: {LAYER} is all parts; name it alone."
    if layout.remat_layers is not None and not layout.recomputed:
        yield f"remat_layers {layout.remat_layers} with remat none: nothing to apply to."
    if layout.offload_layers is not None and not layout.offload:
        yield f"offload_layers {layout.offload_layers} with nothing to offload."


def table(form: Form) -> Rules:
    """The sharding rules of a form, with all mesh axes, since their sizes are not known yet.

    Only ZeRO-3 shards weights over `fsdp` and `context`; only sequence parallelism shards the
    residual over `tensor`.
    """
    rules = {}
    for row, axes in TRAIN.items():
        is_fsdp_weight = row.startswith("weights.") and "fsdp" in axes
        if form.zero == 3 or not is_fsdp_weight:
            rules[row] = axes
    rules["activations.B"] = ("data", "fsdp", "expert")
    rules["residual.B"] = ("data", "fsdp", "expert")
    if not form.sequence_parallel:
        rules["residual.T"] = ("context",)
    if form.expert_tensor == 1:
        rules["weights.E"] = ("tensor", "expert")
    return rules


def rules_of(layout: Layout) -> Rules:
    """The sharding rules of a layout, with the mesh axes whose size is above 1."""
    return only(table(layout), layout.sizes)
