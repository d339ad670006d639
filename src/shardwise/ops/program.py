"""The program of a training step: matmuls and collectives, derived from terms and sharding rules.

The program is derived once for a table of rules. Its costs are functions of mesh sizes, which are
numbers (to explain one strategy) or arrays (to search a million).
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Matmul:
    """One local matmul, `count` times a microbatch.

    Args:
        name: name of its term, and of the gradient in the backward pass.
        group: index of the layer group.
        pieces: number of chunks of its tokens that are multiplied one after the other.
    """

    term: Term
    name: str
    phase: str
    count: int
    program: Program
    sizes: Mapping[str, Num]
    share: Num
    group: int = 0
    pieces: int = 1

    def flops(self, mesh: Mapping[str, Num]) -> Num:
        """FLOPs of the fullest chip, all `count` together."""
        return self.count * self.share * self.program.local_flops(self.sizes, mesh)

    def arrays(self, mesh: Mapping[str, Num]) -> Iterator[tuple[Array, Num]]:
        """(array, elements read or written in HBM by one chip), each input and output once.

        Every piece reads the weight again, or reads and writes the sum of its gradients.
        """
        local = self.program.local
        for array in (*local.inputs, local.output):
            if array.base in ON_CHIP:
                continue
            times = self.pieces
            if "T" in array.names:
                times = 1
            if array is local.output:
                times = 2 * times - 1
            yield array, self.count * times * array.local_elements(self.sizes, mesh)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """One collective, `count` times a microbatch, attributed to a mesh role.

    AllReduces of gradients (`data`) follow the last microbatch: `count` times a step.
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
        if self.role == "data":
            return self.count
        return self.count * n_microbatches

    def elements(self, mesh: Mapping[str, Num]) -> Num:
        """Elements of one occurrence, summed over the shards that it joins (V in the book)."""
        return self.move.joined_bytes(self.sizes, mesh, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """An array that a layer saves for its backward pass, `count` of them in the model."""

    array: Array
    count: int
    sizes: Mapping[str, Num]
    group: int = 0

    def elements(self, mesh: Mapping[str, Num]) -> Num:
        """Elements that one chip saves, all `count` together."""
        return self.count * self.array.local_elements(self.sizes, mesh)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The matmuls and collectives of one chip for a microbatch.

    Args:
        kept: all arrays that the backward pass reads.
        weights: names of the arrays that are weights.
    """

    matmuls: tuple[Matmul, ...]
    transfers: tuple[Transfer, ...]
    kept: tuple[Kept, ...]
    logits: Kept
    weights: frozenset[str]

    def of(self, batch: Num) -> Step:
        """The step for a batch of `batch` sequences."""

        def with_batch(item: Any) -> Any:
            return replace(item, sizes={**item.sizes, "B": batch})

        return replace(
            self,
            matmuls=tuple(map(with_batch, self.matmuls)),
            transfers=tuple(map(with_batch, self.transfers)),
            kept=tuple(map(with_batch, self.kept)),
            logits=with_batch(self.logits),
        )

    def in_chunks(self, n_chunks: int) -> Step:
        """The step with the matmuls of the unembedding in chunks: see `loss_chunks`."""
        if n_chunks == 1:
            return self
        matmuls = []
        for matmul in self.matmuls:
            if matmul.term.module == "unembed":
                matmul = replace(matmul, pieces=n_chunks)
            matmuls.append(matmul)
        return replace(self, matmuls=tuple(matmuls))

    @property
    def layer_inputs(self) -> tuple[Kept, ...]:
        """The inputs of the layers: the only saved arrays under remat `full`."""
        return tuple(saved for saved in self.kept if saved.array.name == "layer_input")


def shard_einsum(einsum: Einsum, weights: frozenset[str], rules: Rules) -> Einsum:
    """Apply sharding rules to every array of an einsum."""
    if einsum.chosen:  # tokens are sent to their experts, whose weights do not move
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
    """The rules without the axis `expert` on weights."""
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
        config: the model.
        batch: sequences of a microbatch, on all chips together.
        seq: tokens of a sequence.
        rules: the sharding table.
        remat: `none`, or `full` to run each layer's forward pass again before its backward pass.
    """
    return _derived(config, seq, tuple(rules.items()), remat).of(batch)


@functools.lru_cache(maxsize=256)
def _derived(
    config: ModelConfig, seq: int, rows: tuple[tuple[str, tuple[str, ...]], ...], remat: str
) -> Step:
    """The step for one sequence, since the algebra does not depend on sizes."""
    rules = dict(rows)
    common: dict[str, Num] = {"B": 1, "T": seq, "S": seq, "D": config.d_model, "V": config.vocab}
    matmuls: list[Matmul] = []
    transfers: list[Transfer] = []
    kept: list[Kept] = []
    weights: frozenset[str] = frozenset()
    for i, group in enumerate(config.groups):
        terms = layer_terms(config, group.layer, seq)
        derive_terms(terms, group.count, ("forward",), common, rules, matmuls, transfers, group=i)
        # The backward pass right after a recomputed forward pass reuses what this gathered.
        phases: tuple[str, ...] = ("backward",)
        if remat == "full":
            phases = ("remat", "backward")
        derive_terms(
            terms,
            group.count,
            phases,
            common,
            rules,
            matmuls,
            transfers,
            recomputed=_read_backward(group.layer, terms),
            group=i,
        )
        kept += _saved(config, i, common, rules)
        weights |= weight_names(terms)
    outer = outer_terms(config)
    # The backward pass of the unembedding follows at once and reuses the gathered weight.
    derive_terms(outer, 1, ("forward", "backward"), common, rules, matmuls, transfers)
    logits = shard_einsum(outer[1].einsum, weight_names(outer[1:]), rules).output
    return Step(
        matmuls=tuple(matmuls),
        transfers=tuple(transfers),
        kept=tuple(kept),
        logits=Kept(array=logits, count=1, sizes=common),
        weights=weights | weight_names(outer),
    )


def weight_names(terms: tuple[Term, ...]) -> frozenset[str]:
    """Names of the weights: the right inputs outside the attention core."""
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
    """Append the matmuls and collectives of phases; terms of a block share equal collectives.

    Args:
        recomputed: names of the terms in phase `remat`.
        group: index of the layer group.
    """
    weights = weight_names(terms)
    shared_moves: set[tuple[str, Move]] = set()
    for phase, term in _in_order(terms, phases, recomputed):
        forward_einsum = shard_einsum(term.einsum, weights, rules)
        sizes = {**common, **term.sizes}
        for name, einsum in _of_phase(term, forward_einsum, phase):
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


def _in_order(
    terms: tuple[Term, ...], phases: tuple[str, ...], recomputed: frozenset[str]
) -> Iterator[tuple[str, Term]]:
    for phase in phases:
        ordered = terms
        if phase == "backward":
            ordered = terms[::-1]
        for term in ordered:
            if phase != "remat" or term.name in recomputed:
                yield phase, term


def _read_backward(layer: Layer, terms: tuple[Term, ...]) -> frozenset[str]:
    """Names of the terms whose output the backward pass reads.

    The last matmul of a block ends in a sum, which only a norm behind it, or the next block of the
    layer, reads.
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
    """The mesh role of a collective, whatever the sizes of its axes.

    Collectives on shards of weights or gradients are `fsdp`, also where `context` shards them;
    AllReduces of gradients are `data`; all others have the role of their innermost axis.
    """
    if move.before.base not in weights:
        return min(move.axes, key=INSIDE_OUT.index)
    if "fsdp" in move.axes or "context" in move.axes:
        return "fsdp"
    return "data"


def _saved_gathered(move: Move) -> bool:
    """Whether the gathered array is saved: inputs of blocks are, weights, keys and values not."""
    return move.kind == "all_gather" and move.before.name in RESIDUAL


def _of_phase(term: Term, einsum: Einsum, phase: str) -> Iterator[tuple[str, Einsum]]:
    if phase != "backward":
        yield term.name, einsum
        return
    d_left, d_right = einsum.gradients()
    if einsum.left.name != "onehot":
        yield f"{term.name}.d_{einsum.left.name}", d_left
    yield f"{term.name}.d_{einsum.right.name}", d_right


def _saved(config: ModelConfig, i: int, common: Mapping[str, Num], rules: Rules) -> Iterator[Kept]:
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
        yield Kept(array=sharded, count=group.count, sizes=sizes, group=i)


def weight_elements(
    dims: tuple[str, ...], shape: tuple[int, ...], rules: Rules, mesh: Mapping[str, Num]
) -> Num:
    """Elements of one weight on one chip under sharding rules, padded where uneven."""
    axes = layout(rules, "weights", dims)
    total: Num = 1
    for dim, size in zip(dims, shape, strict=True):
        total = total * ceil_div(size, shards(axes.get(dim, ()), mesh))
    return total
