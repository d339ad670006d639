"""A layout: how one training step is split, in the numbers that frameworks call parallelism.

A published run states one, in the words of its framework.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardwise.arrays import Num
from shardwise.errors import BadShape, nearest, raise_all
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
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """What layouts have in common that are evaluated together: words, where sizes are numbers.

    Args:
        zero: 0 nothing sharded, 1 optimizer, 2 and gradients, 3 and weights (FSDP).
        schedule: Of the pipeline; "none" without one.
        recomputed: Parts of a layer that run again in the backward pass (remat): those of a policy,
            `REMAT_POLICIES["dots"]`, or any of `PARTS`.
        remat_layers: Layers (of the model, or of a stage in a pipeline) that remat applies to;
            None for all.
        sequence_parallel: Activations between blocks are sharded over `tensor` too.
        context_kind: One of `CONTEXT_KINDS`.
        expert_tensor: Ways to split the matrices of one expert; None for as many as `tensor`. With
            fewer, whole experts lie on the rest of `tensor`, and the degree of expert parallelism
            is expert x tensor / expert_tensor.
        offload: What waits in host memory: state or activations, or the results of named parts.
        offload_layers: Layers that offload applies to; None for all.
        overlap: Communication that runs under computation.
        loss_chunks: Pieces of a chip's tokens, of a microbatch, whose logits exist one after the
            other (fused linear cross entropy). Published long contexts need it: 256k tokens of a
            128k vocabulary are 269 GB of logits in one piece.
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
        """The remat policy by its name, or the parts that run again."""
        for name, parts in REMAT_POLICIES.items():
            if parts == self.recomputed:
                return name
        return ",".join(self.recomputed)

    @property
    def is_pipelined(self) -> bool:
        """Whether the layers are split into the stages of a pipeline."""
        return self.schedule != NO_SCHEDULE

    @property
    def full_remat(self) -> bool:
        """Whether layers under remat run again as a whole."""
        return LAYER in self.recomputed

    @property
    def passes_on(self) -> bool:
        """Whether chips of `tensor` pass their tokens on while products run."""
        return self.sequence_parallel and "tp_comm" in self.overlap

    def recomputes(self, part: str) -> bool:
        """Whether a layer under remat runs this part of `PARTS` again in the backward pass."""
        return self.full_remat or part in self.recomputed


@dataclass(frozen=True, slots=True, kw_only=True)
class Layouts(Form):
    """Many layouts of one form: arrays of sizes, one element for each layout.

    Args:
        sizes: Chips by role of the mesh.
        micro_batch, n_microbatches, virtual: As in `Layout`.
    """

    sizes: Mapping[str, Num]
    micro_batch: Num
    n_microbatches: Num
    virtual: Num = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout(Form):
    """How a training step is laid over the chips.

    Global batch = micro_batch x n_microbatches x data x fsdp x expert. What ZeRO shards, it shards
    over data, fsdp and context (and over expert, for weights that are no expert's).

    Args:
        mesh: Chips by role. `data` x `fsdp` x `expert` is the data-parallel degree of Megatron:
            `expert` is the share of the data ranks that expert parallelism takes.
        micro_batch: Sequences that one data shard computes at once.
        n_microbatches: Microbatches of one step, through a pipeline or accumulated.
        virtual: Chunks of layers that each stage of an interleaved schedule holds.
    """

    mesh: Mesh
    micro_batch: int = 1
    n_microbatches: int = 1
    virtual: int = 1

    def __post_init__(self) -> None:
        problems = [*_counts(self), *_names(self)]
        raise_all(BadShape, problems or [*_pipeline(self), *_sharding(self), *_remat(self)])

    @property
    def sizes(self) -> dict[str, int]:
        """Chips by role of the mesh."""
        return self.mesh.sizes

    @property
    def data_shards(self) -> int:
        """Parts that the batch is cut into: data x fsdp x expert."""
        return int(data_shards(self.sizes))

    @property
    def global_batch(self) -> int:
        """Sequences of one step."""
        return self.micro_batch * self.n_microbatches * self.data_shards

    @property
    def expert_degree(self) -> int:
        """Ranks among which the experts of one layer are dealt out."""
        return int(expert_degree(self, self.sizes))


def data_shards(sizes: Mapping[str, Num]) -> Num:
    """Parts that the batch is cut into: data x fsdp x expert."""
    return sizes["data"] * sizes["fsdp"] * sizes["expert"]


def expert_degree(form: Form, sizes: Mapping[str, Num]) -> Num:
    """Ranks among which the experts of one layer are dealt out."""
    whole = sizes["tensor"] // form.expert_tensor if form.expert_tensor else 1
    return sizes["expert"] * whole


def _counts(layout: Layout) -> list[str]:
    given = {
        "micro_batch": layout.micro_batch,
        "n_microbatches": layout.n_microbatches,
        "virtual": layout.virtual,
        "remat_layers": layout.remat_layers,
        "expert_tensor": layout.expert_tensor,
        "offload_layers": layout.offload_layers,
        "loss_chunks": layout.loss_chunks,
    }
    return [f"{name} {n} is below 1." for name, n in given.items() if n is not None and n < 1]


def _names(layout: Layout) -> list[str]:
    problems = []
    if layout.zero not in range(4):
        problems.append(f"zero {layout.zero} is not a stage of ZeRO: 0, 1, 2 or 3.")
    asked = [("schedule", layout.schedule, (NO_SCHEDULE, *schedules.names()))]
    asked += [("context kind", layout.context_kind, CONTEXT_KINDS)]
    asked += [("recomputed part", part, (*PARTS, LAYER)) for part in layout.recomputed]
    asked += [("offload", name, OFFLOADS) for name in layout.offload]
    asked += [("overlap", name, OVERLAPS) for name in layout.overlap]
    for what, name, known in asked:
        if name not in known:
            problems.append(f'unknown {what} "{name}". {nearest(name, known)}')
    return problems


def _pipeline(layout: Layout) -> list[str]:
    stages, schedule = layout.mesh.pipe, layout.schedule
    problems = []
    if (stages > 1) != (schedule != NO_SCHEDULE):
        need = "needs a schedule" if stages > 1 else f'has no use for schedule "{schedule}"'
        problems.append(f"pipe {stages} {need}: a pipeline has both or neither.")
    if (layout.virtual > 1) != schedules.chunked(schedule):
        problems.append(
            f'virtual {layout.virtual} under schedule "{schedule}": interleaved stages hold 2 or '
            "more chunks, those of other schedules 1."
        )
    return problems


def _sharding(layout: Layout) -> list[str]:
    mesh, problems = layout.mesh, []
    if mesh.fsdp > 1 and layout.zero != 3:
        problems.append(
            f"fsdp {mesh.fsdp} with zero {layout.zero}: fsdp shards weights, which is zero 3. "
            "Ranks that keep whole weights are data."
        )
    if layout.sequence_parallel and mesh.tensor == 1:
        problems.append("sequence_parallel with tensor 1: it shards over tensor, 2 or more.")
    if layout.expert_tensor and mesh.tensor % layout.expert_tensor:
        problems.append(
            f"expert_tensor {layout.expert_tensor} does not divide tensor {mesh.tensor}."
        )
    return problems


def _remat(layout: Layout) -> list[str]:
    problems = []
    if layout.full_remat and len(layout.recomputed) > 1:
        problems.append(
            f"recomputed {', '.join(layout.recomputed)}: {LAYER} is all parts; name it alone."
        )
    if layout.remat_layers is not None and not layout.recomputed:
        problems.append(f"remat_layers {layout.remat_layers} with remat none: nothing to apply to.")
    if layout.offload_layers is not None and not layout.offload:
        problems.append(f"offload_layers {layout.offload_layers} with nothing to offload.")
    return problems


def table(form: Form) -> Rules:
    """The sharding table of all layouts of a form, with every axis, whatever its size.

    Weights are split over `fsdp` and `context` under ZeRO-3 only; without sequence parallelism the
    residual is whole over `tensor`. Whole experts are dealt out over `tensor` too.
    """
    rules = dict(TRAIN)
    for row in [r for r in rules if form.zero < 3 and "fsdp" in rules[r]]:
        if row.startswith("weights."):
            del rules[row]
    rules["activations.B"] = rules["residual.B"] = ("data", "fsdp", "expert")
    if not form.sequence_parallel:
        rules["residual.T"] = ("context",)
    if form.expert_tensor == 1:
        rules["weights.E"] = ("tensor", "expert")
    return rules


def rules_of(layout: Layout) -> Rules:
    """The sharding table of a layout: the axes that it has."""
    return only(table(layout), layout.sizes)
