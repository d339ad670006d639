"""The program of a training step: matmuls and collectives, derived from terms and sharding rules.

A program is derived once for a table of rules. Its FLOPs and bytes are functions of the mesh sizes:
numbers for one strategy, or arrays for a search over many.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from shardwise.arrays import Num, ceil_div
from shardwise.models import Layer, ModelConfig
from shardwise.models.activations import layer_activations
from shardwise.ops.einsum import Array, Dim, Einsum, shards
from shardwise.ops.layers import ON_CHIP, RESIDUAL, Term, layer_terms, outer_terms
from shardwise.ops.sharded import Move, Program, derive
from shardwise.strategy.mesh import INSIDE_OUT
from shardwise.strategy.rules import Rules, layout

# Activations between blocks, which sequence parallelism shards over `tensor` too.
RESIDUAL_ACTIVATIONS = frozenset(
    {"layer_input", "middle", "attention_output", "ffn_output", "shared_output"}
    | {"q_latent", "kv_latent", "mamba_output", "latent", "latent_output"}
)


@dataclass(frozen=True, kw_only=True)  # without slots: see `Step.with_batch`
class Matmul:
    """One matmul of a term or of its gradients.

    Args:
        name: `mlp.up`, or `mlp.up.d_w_up` for a gradient in the backward pass.
        phase: `forward`, `remat` or `backward`.
        count: occurrences in one microbatch: the layers of the group.
        group: index of the layer group.
        n_chunks: number of chunks of its tokens that are multiplied one after the other.
    """

    term: Term
    name: str
    phase: str
    count: int
    program: Program
    sizes: Mapping[str, Num]
    share: Num
    group: int = 0
    n_chunks: int = 1

    def flops(self, mesh: Mapping[str, Num]) -> Num:
        """FLOPs of the chip with the largest shards, for all occurrences in a microbatch."""
        return self.count * self.share * self.program.local_flops(self.sizes, mesh)

    def arrays(self, mesh: Mapping[str, Num]) -> Iterator[tuple[Array, Num]]:
        """Yield each input and the output with the elements that one chip reads or writes in HBM.

        Each chunk of tokens reads the weight again, or adds to the weight's gradient in HBM.
        Experts read or write every copy of a token. Arrays that stay on the chip are left out.
        """
        local = self.program.local
        for array in (*local.inputs, local.output):
            if array.base in ON_CHIP:
                continue
            n_accesses = 1 if "T" in array.names else self.n_chunks
            if array is local.output:
                n_accesses = 2 * n_accesses - 1
            elements = self.copies(array) * array.local_elements(self.sizes, mesh)
            yield array, self.count * n_accesses * elements

    def copies(self, array: Array) -> Num:
        """Copies of an array that the matmul reads or writes: of tokens, one for each expert."""
        is_routed = self.program.local.chosen and not {"R", "E"} & {*array.names}
        return self.sizes["R"] if is_routed else 1


@dataclass(frozen=True, kw_only=True)  # without slots: see `Step.with_batch`
class Transfer:
    """One collective of a matmul, `count` times a microbatch, attributed to a mesh role.

    AllReduces of gradients (role `data`) follow the last microbatch only: `count` times a step.
    """

    term: Term
    name: str
    phase: str
    count: int
    role: str
    move: Move
    sizes: Mapping[str, Num]
    group: int = 0

    def times(self, n_microbatches: Num) -> Num:
        """Number of occurrences in a step."""
        return self.count if self.role == "data" else self.count * n_microbatches

    def elements(self, mesh: Mapping[str, Num]) -> Num:
        """Elements of all shards that one occurrence joins or splits (V in the book)."""
        return self.move.joined_bytes(self.sizes, mesh, 1)


@dataclass(frozen=True, kw_only=True)  # without slots: see `Step.with_batch`
class SavedActivation:
    """An array that `count` layers of the model save for the backward pass."""

    array: Array
    count: int
    sizes: Mapping[str, Num]
    group: int = 0

    def elements(self, mesh: Mapping[str, Num]) -> Num:
        """Elements that one chip saves for all `count` layers."""
        return self.count * self.array.local_elements(self.sizes, mesh)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The matmuls, collectives and saved activations of one microbatch.

    Args:
        matmuls, transfers: in the order of execution.
        saved: the arrays of all layers that the backward pass reads, without remat.
        logits: the output of the unembedding.
        weights: names of the arrays that are weights.
    """

    matmuls: tuple[Matmul, ...]
    transfers: tuple[Transfer, ...]
    saved: tuple[SavedActivation, ...]
    logits: SavedActivation
    weights: frozenset[str]

    def with_batch(self, batch: Num) -> Step:
        """A copy with `batch` sequences per microbatch: B of every matmul and array."""

        def set_batch(item: Any) -> Any:  # ten times as fast as `dataclasses.replace`
            copy = object.__new__(type(item))
            copy.__dict__.update(item.__dict__)
            copy.__dict__["sizes"] = {**item.sizes, "B": batch}
            return copy

        return replace(
            self,
            matmuls=tuple(map(set_batch, self.matmuls)),
            transfers=tuple(map(set_batch, self.transfers)),
            saved=tuple(map(set_batch, self.saved)),
            logits=set_batch(self.logits),
        )

    def in_chunks(self, n_chunks: int) -> Step:
        """A copy whose unembedding runs in chunks of tokens (`Form.loss_chunks`)."""
        if n_chunks == 1:
            return self
        matmuls = (
            replace(matmul, n_chunks=n_chunks) if matmul.term.module == "unembed" else matmul
            for matmul in self.matmuls
        )
        return replace(self, matmuls=tuple(matmuls))

    @property
    def layer_inputs(self) -> tuple[SavedActivation, ...]:
        """The inputs of the layers: the only saved arrays under remat `full`."""
        return tuple(item for item in self.saved if item.array.name == "layer_input")


def shard_einsum(einsum: Einsum, weights: frozenset[str], rules: Rules) -> Einsum:
    """Apply sharding rules to every array of an einsum; `weights` names those that are weights."""
    if einsum.chosen:  # tokens are sent to their experts, the weights of experts are not gathered
        rules = _expert_rules(rules)
    arrays = []
    for array in (*einsum.inputs, einsum.output):
        kind = "activations"
        if array.name in weights:
            kind = "weights"
        elif array.name in RESIDUAL:
            kind = "residual"
        arrays.append(array.with_axes(layout(rules, kind, array.names)))
    left, right, output = arrays
    return Einsum(left, right, output, einsum.chosen)


def _expert_rules(rules: Rules) -> Rules:
    """The rules without `expert` on weights.

    The algebra then derives no collective over `expert`: those that send tokens to their experts
    are in `estimate.training.extra_traffic`.
    """
    without_expert = {}
    for row, axes in rules.items():
        if row == "weights.E":
            continue
        if row.startswith("weights."):
            axes = tuple(axis for axis in axes if axis != "expert")
        without_expert[row] = axes
    return without_expert


def training_step(config: ModelConfig, batch: Num, seq: int, rules: Rules, *, remat: str) -> Step:
    """Derive the matmuls and collectives of one microbatch of a step.

    Args:
        batch: sequences of a microbatch, on all chips together.
        seq: tokens of a sequence.
        remat: `none`, or `full` to run each layer's forward pass again before its backward pass.
    """
    return _derive_step(config, seq, tuple(rules.items()), remat).with_batch(batch)


@functools.lru_cache(maxsize=256)
def _derive_step(
    config: ModelConfig, seq: int, rows: tuple[tuple[str, tuple[str, ...]], ...], remat: str
) -> Step:
    """The step for a microbatch of one sequence; cached, since only B depends on the batch."""
    rules = dict(rows)
    common: dict[str, Num] = {"B": 1, "T": seq, "S": seq, "D": config.d_model, "V": config.vocab}
    matmuls: list[Matmul] = []
    transfers: list[Transfer] = []
    saved: list[SavedActivation] = []
    weights: frozenset[str] = frozenset()
    for i, group in enumerate(config.groups):
        terms = layer_terms(config, group.layer, seq)
        derive_terms(terms, group.count, ("forward",), common, rules, matmuls, transfers, group=i)
        # A recomputed forward pass is followed by the backward pass at once, which reuses the
        # arrays that it gathered.
        phases: tuple[str, ...] = ("backward",)
        if remat == "full":
            phases = ("remat", "backward")
        read = _read_backward(group.layer, terms)
        derive_terms(
            terms, group.count, phases, common, rules, matmuls, transfers, recomputed=read, group=i
        )
        saved += _saved_activations(config, i, common, rules)
        weights |= weight_names(terms)
    outer = outer_terms(config)
    # The backward pass of the unembedding follows at once and reuses the gathered weight.
    derive_terms(outer, 1, ("forward", "backward"), common, rules, matmuls, transfers)
    logits = shard_einsum(outer[1].einsum, weight_names(outer[1:]), rules).output
    return Step(
        matmuls=tuple(matmuls),
        transfers=tuple(transfers),
        saved=tuple(saved),
        logits=SavedActivation(array=logits, count=1, sizes=common),
        weights=weights | weight_names(outer),
    )


def weight_names(terms: tuple[Term, ...]) -> frozenset[str]:
    """Names of the weights of these terms: the right inputs, except in the attention core."""
    return frozenset(term.einsum.right.name for term in terms if term.block != "core")


def derive_terms(
    terms: tuple[Term, ...],
    count: int,
    phases: tuple[str, ...],
    common: Mapping[str, Num],
    rules: Rules,
    matmuls: list[Matmul],
    transfers: list[Transfer],
    recomputed: frozenset[str] = frozenset(),
    group: int = 0,
) -> None:
    """Append the matmuls and collectives of some phases of a layer to two lists.

    Equal collectives of terms of one block run once.

    Args:
        terms: the matmuls of the forward pass of one layer.
        count: number of such layers.
        phases: `forward`, `remat`, `backward`: those that follow each other at once.
        common: dim -> size, for the dims that all terms share.
        matmuls, transfers: the lists to extend.
        recomputed: names of the terms that phase `remat` runs.
        group: index of the layer group.
    """
    weights = weight_names(terms)
    shared_moves: set[tuple[str, Move]] = set()
    for phase, term in _phases_and_terms(terms, phases, recomputed):
        forward_einsum = shard_einsum(term.einsum, weights, rules)
        sizes = {**common, **term.sizes}
        for name, einsum in _phase_einsums(term, forward_einsum, phase):
            program = derive(einsum)
            matmuls.append(
                Matmul(
                    term=term,
                    name=name,
                    phase=phase,
                    count=count,
                    group=group,
                    program=program,
                    sizes=sizes,
                    share=term.share,
                )
            )
            for move in program.moves:
                if move.kind == "slice" or (term.block, move) in shared_moves:
                    continue
                shared_moves.add((term.block, move))
                if phase == "backward" and _saved_gathered(move):
                    continue
                transfers.append(
                    Transfer(
                        term=term,
                        name=name,
                        phase=phase,
                        count=count,
                        group=group,
                        role=_role(move, weights),
                        move=move,
                        sizes=sizes,
                    )
                )


def _phases_and_terms(
    terms: tuple[Term, ...], phases: tuple[str, ...], recomputed: frozenset[str]
) -> Iterator[tuple[str, Term]]:
    """Yield (phase, term) in the order of execution."""
    for phase in phases:
        ordered = terms
        if phase == "backward":
            ordered = terms[::-1]
        for term in ordered:
            if phase != "remat" or term.name in recomputed:
                yield phase, term


def _read_backward(layer: Layer, terms: tuple[Term, ...]) -> frozenset[str]:
    """Names of the terms whose output the backward pass reads.

    The output of a block's last matmul is added to the residual: only a norm after the block, or
    the next block of the same layer, needs it.
    """
    has_post_norm = layer.norms in ("post", "both")
    read_by_next_block: tuple[str, ...] = ()
    if layer.has_both and not layer.parallel:
        read_by_next_block = ("attn.out", "mamba.out")
    names = set()
    for term in terms:
        ends_block = term.einsum.output.name == "y"
        if has_post_norm or not ends_block or term.name in read_by_next_block:
            names.add(term.name)
    return frozenset(names)


def _role(move: Move, weights: frozenset[str]) -> str:
    """The mesh role of a collective, for all sizes of its axes.

    Gathers of weights and reductions of gradients have role `fsdp` if they run over `fsdp` or
    `context`, else `data`. Collectives of activations have the role of their innermost axis.
    """
    if move.before.base not in weights:
        return min(move.axes, key=INSIDE_OUT.index)
    if "fsdp" in move.axes or "context" in move.axes:
        return "fsdp"
    return "data"


def _saved_gathered(move: Move) -> bool:
    """Whether the gathered array is saved for the backward pass, as only inputs of blocks are."""
    return move.kind == "all_gather" and move.before.name in RESIDUAL


def _phase_einsums(term: Term, einsum: Einsum, phase: str) -> Iterator[tuple[str, Einsum]]:
    """Yield the einsums that a phase runs for a term, with their names."""
    if phase != "backward":
        yield term.name, einsum
        return
    d_left, d_right = einsum.gradients()
    if einsum.left.name != "onehot":
        yield f"{term.name}.d_{einsum.left.name}", d_left
    yield f"{term.name}.d_{einsum.right.name}", d_right


def _saved_activations(
    config: ModelConfig, i: int, common: Mapping[str, Num], rules: Rules
) -> Iterator[SavedActivation]:
    """The activations of layer group i that the backward pass reads."""
    group = config.groups[i]
    for row in layer_activations(config, group.layer):
        kind = "activations"
        if row.name in RESIDUAL_ACTIVATIONS:
            kind = "residual"
        names = ("B", "T", *row.dims)
        array = Array(row.name, tuple(map(Dim, names)))
        sizes = {**common, **dict(zip(row.dims, row.shape, strict=True))}
        sharded = array.with_axes(layout(rules, kind, names))
        yield SavedActivation(array=sharded, count=group.count, sizes=sizes, group=i)


def weight_elements(
    dims: tuple[str, ...], shape: tuple[int, ...], rules: Rules, mesh: Mapping[str, Num]
) -> Num:
    """Elements of the largest shard of a weight under sharding rules."""
    axes = layout(rules, "weights", dims)
    total: Num = 1
    for dim, size in zip(dims, shape, strict=True):
        total = total * ceil_div(size, shards(axes.get(dim, ()), mesh))
    return total
