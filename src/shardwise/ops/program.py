"""A training step as works: matmuls and collectives with counts, derived from terms and rules.

The program is derived once for a table of rules. Its costs are functions of mesh sizes, which may
be numbers (one strategy, to explain) or arrays (a million, to search).
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

# Activations that lie between blocks, split over the sequence by `tensor` too.
KEPT_SPLIT = frozenset(
    {"layer_input", "middle", "attention_output", "ffn_output", "shared_output"}
    | {"q_latent", "kv_latent", "mamba_output", "latent", "latent_output"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Matmul:
    """One local matmul, `count` times a microbatch.

    Args:
        name: of the product: that of its term, and of the gradient in the backward pass.
        pieces: parts of its tokens that are multiplied one after the other.
    """

    term: Term
    name: str
    phase: str
    count: int
    program: Program
    sizes: Mapping[str, Num]
    share: Num
    group: int = 0  # of layers of one kind
    pieces: int = 1

    def flops(self, mesh: Mapping[str, Num]) -> Num:
        """FLOPs of the fullest chip, all `count` together."""
        return self.count * self.share * self.program.local_flops(self.sizes, mesh)

    def arrays(self, mesh: Mapping[str, Num]) -> Iterator[tuple[Array, Num]]:
        """(array, elements read or written in HBM by one chip), each input and output once.

        With each piece a weight is read again, and a sum of gradients read and written.
        """
        local = self.program.local
        for array in (*local.inputs, local.output):
            if array.base not in ON_CHIP:
                times = 1 if "T" in array.names else self.pieces
                if array is local.output:
                    times = 2 * times - 1
                yield array, self.count * times * array.local_elements(self.sizes, mesh)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """One collective, `count` times a microbatch, its time booked on a mesh role.

    Sums of whole gradients (`data`) wait for the last microbatch: `count` times a step.
    """

    term: Term
    name: str
    phase: str
    count: int
    role: str
    move: Move
    sizes: Mapping[str, Num]
    group: int = 0  # of layers of one kind

    def times(self, n_microbatches: Num) -> Num:
        """How often it happens in a step."""
        return self.count * (1 if self.role == "data" else n_microbatches)

    def elements(self, mesh: Mapping[str, Num]) -> Num:
        """Elements of one occurrence, summed over the shards that it joins (V of the book)."""
        return self.move.joined_bytes(self.sizes, mesh, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """An array that a layer keeps for its backward pass, `count` of them in the model."""

    array: Array
    count: int
    sizes: Mapping[str, Num]
    group: int = 0  # of layers of one kind

    def elements(self, mesh: Mapping[str, Num]) -> Num:
        """Elements that one chip keeps, all `count` together."""
        return self.count * self.array.local_elements(self.sizes, mesh)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Everything that one chip does for a microbatch, and what each layer keeps of it."""

    matmuls: tuple[Matmul, ...]
    transfers: tuple[Transfer, ...]
    kept: tuple[Kept, ...]  # all that the backward pass reads
    logits: Kept
    weights: frozenset[str]  # names of the weights among the arrays

    def of(self, batch: Num) -> Step:
        """The same works for so many sequences."""

        def sized(work: Any) -> Any:
            return replace(work, sizes={**work.sizes, "B": batch})

        return replace(
            self,
            matmuls=tuple(map(sized, self.matmuls)),
            transfers=tuple(map(sized, self.transfers)),
            kept=tuple(map(sized, self.kept)),
            logits=sized(self.logits),
        )

    def in_chunks(self, n: int) -> Step:
        """The same works with the products of the unembedding in `n` pieces: see `loss_chunks`."""
        if n == 1:
            return self
        matmuls = [replace(m, pieces=n) if m.term.module == "unembed" else m for m in self.matmuls]
        return replace(self, matmuls=tuple(matmuls))

    @property
    def layer_inputs(self) -> tuple[Kept, ...]:
        """What enters each layer: all that is kept under remat `full`."""
        return tuple(k for k in self.kept if k.array.name == "layer_input")


def shard_einsum(einsum: Einsum, weights: frozenset[str], rules: Rules) -> Einsum:
    """Lay every array of an einsum out by the table."""

    def laid_out(array: Array) -> Array:
        if array.name in weights:
            kind = "weights"
        else:
            kind = "residual" if array.name in RESIDUAL else "activations"
        return array.with_axes(layout(rules, kind, array.names))

    if einsum.chosen:  # tokens are sent to their experts, which stay where they are
        rules = {
            row: tuple(a for a in axes if a != "expert") if row.startswith("weights.") else axes
            for row, axes in rules.items()
            if row != "weights.E"
        }
    left, right, output = map(laid_out, (*einsum.inputs, einsum.output))
    return Einsum(left, right, output, einsum.chosen)


def training_step(config: ModelConfig, batch: Num, seq: int, rules: Rules, *, remat: str) -> Step:
    """Derive the works of one microbatch of a step.

    Args:
        config: the model.
        batch, seq: sequences of a microbatch, on all chips together, and their length in tokens.
        rules: the sharding table.
        remat: `none`, or `full` to run each layer's forward pass again before its backward pass.
    """
    return _derived(config, seq, tuple(rules.items()), remat).of(batch)


@functools.lru_cache(maxsize=256)
def _derived(
    config: ModelConfig, seq: int, rows: tuple[tuple[str, tuple[str, ...]], ...], remat: str
) -> Step:
    """The works of one sequence: the algebra does not depend on sizes."""
    rules = dict(rows)
    common: dict[str, Num] = {"B": 1, "T": seq, "S": seq, "D": config.d_model, "V": config.vocab}
    matmuls: list[Matmul] = []
    transfers: list[Transfer] = []
    kept: list[Kept] = []
    weights: frozenset[str] = frozenset()
    for i, group in enumerate(config.groups):
        terms = layer_terms(config, group.layer, seq)
        derive_terms(terms, group.count, ("forward",), common, rules, matmuls, transfers, group=i)
        # A layer that is computed again keeps what it gathers for its backward pass at once.
        again = ("remat", "backward") if remat == "full" else ("backward",)
        read = _read_backward(group.layer, terms)
        derive_terms(
            terms, group.count, again, common, rules, matmuls, transfers, again=read, group=i
        )
        kept += _kept(config, i, common, rules)
        weights |= weight_names(terms)
    outer = outer_terms(config)
    # The gathered unembedding is still at hand in its backward pass, which follows at once.
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
    """Weights are the right-hand sides outside the attention core."""
    return frozenset(t.einsum.right.name for t in terms if t.block != "core")


def derive_terms(
    terms: tuple[Term, ...],
    count: int,
    phases: tuple[str, ...],
    common: Mapping[str, Num],
    rules: Rules,
    matmuls: list[Matmul],
    transfers: list[Transfer],
    again: frozenset[str] = frozenset(),
    group: int = 0,
) -> None:
    """Add the works of phases. A move that several terms of a block need happens once in them.

    Args:
        again: the terms of phase `remat`.
        group: of layers of one kind.
    """
    weights = weight_names(terms)
    seen: set[tuple[str, Move]] = set()
    for phase, term in _in_order(terms, phases, again):
        einsum = shard_einsum(term.einsum, weights, rules)
        sizes = {**common, **term.sizes}
        for name, one in _of_phase(term, einsum, phase):
            program = derive(one)
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
                if move.kind == "slice" or (term.block, move) in seen:
                    continue
                seen.add((term.block, move))
                if phase == "backward" and _kept_as_used(move):
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
    terms: tuple[Term, ...], phases: tuple[str, ...], again: frozenset[str]
) -> Iterator[tuple[str, Term]]:
    for phase in phases:
        for term in terms[::-1] if phase == "backward" else terms:
            if phase != "remat" or term.name in again:
                yield phase, term


def _read_backward(layer: Layer, terms: tuple[Term, ...]) -> frozenset[str]:
    """The terms whose output the backward pass reads: the last product of a block ends in a sum,
    which only a norm behind it, or the next block of the layer, would read."""
    normed = layer.norms in ("post", "both")
    between = ("attn.out", "mamba.out") if layer.has_both and not layer.parallel else ()
    return frozenset(
        t.name for t in terms if normed or t.einsum.output.name != "y" or t.name in between
    )


def _role(move: Move, weights: frozenset[str]) -> str:
    """The role of a collective by what it moves, whatever the sizes of its axes.

    Shards of weights are `fsdp` traffic, also where `context` is what shards them; sums of
    gradients that leave them whole are `data` traffic; all else is its innermost axis's.
    """
    if move.before.base in weights:
        return "fsdp" if {"fsdp", "context"} & {*move.axes} else "data"
    return min(move.axes, key=INSIDE_OUT.index)


def _kept_as_used(move: Move) -> bool:
    """Inputs of blocks are kept as gathered over `tensor`; weights, keys and values are not."""
    return move.kind == "all_gather" and move.before.name in RESIDUAL


def _of_phase(term: Term, einsum: Einsum, phase: str) -> Iterator[tuple[str, Einsum]]:
    if phase != "backward":
        yield term.name, einsum
        return
    d_left, d_right = einsum.gradients()
    if einsum.left.name != "onehot":
        yield f"{term.name}.d_{einsum.left.name}", d_left
    yield f"{term.name}.d_{einsum.right.name}", d_right


def _kept(config: ModelConfig, i: int, common: Mapping[str, Num], rules: Rules) -> Iterator[Kept]:
    """The activations of the i-th kind of layer, as the backward pass reads them."""
    group = config.groups[i]
    for row in layer_activations(config, group.layer):
        kind = "residual" if row.name in KEPT_SPLIT else "activations"
        names = ("B", "T", *row.dims)
        array = Array(row.name, tuple(map(Dim, names)))
        sizes = {**common, **dict(zip(row.dims, row.shape, strict=True))}
        laid_out = array.with_axes(layout(rules, kind, names))
        yield Kept(array=laid_out, count=group.count, sizes=sizes, group=i)


def weight_elements(
    dims: tuple[str, ...], shape: tuple[int, ...], rules: Rules, mesh: Mapping[str, Num]
) -> Num:
    """Elements of one weight that one chip holds under the table (padded where uneven)."""
    axes = layout(rules, "weights", dims)
    total: Num = 1
    for dim, size in zip(dims, shape, strict=True):
        total = total * ceil_div(size, shards(axes.get(dim, ()), mesh))
    return total
