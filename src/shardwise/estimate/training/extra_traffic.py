"""What a step sends beside the sharding algebra: tokens to experts, heads for tokens, states of
scans, activations to the next stage."""

from __future__ import annotations

from collections.abc import Iterator

from shardwise.arrays import Num, maximum, minimum, where
from shardwise.estimate.items import PricedItem
from shardwise.estimate.routing import SendOnce
from shardwise.estimate.training.priced_layout import PricedLayout
from shardwise.models import Moe
from shardwise.ops.einsum import shards
from shardwise.ops.layers import RESIDUAL
from shardwise.ops.program import Transfer

NARROW = ("cx", "cy")  # experts on a latent read and write these and nothing else
DISPATCH, COMBINE = "moe.dispatch", "moe.combine"


def extra_traffic(priced: PricedLayout) -> Iterator[PricedItem]:
    """Collectives of all layers for one microbatch.

    Remat that drops what experts have received repeats the dispatch of the forward pass. What comes
    back from experts is not needed again: tokens are weighted before the last product, which
    nothing reads.
    """
    yield from _to_experts(priced)
    if priced.layout.context_kind == "ulysses":
        yield from _heads_for_tokens(priced)
    yield from _states(priced)


def residual_bytes(priced: PricedLayout) -> Num:
    """The residual of one microbatch on a chip, as it lies between blocks."""
    mesh, layout, job = priced.mesh, priced.layout, priced.job
    tensor = mesh["tensor"] if layout.sequence_parallel else 1
    elements = layout.micro_batch * job.seq * priced.config.d_model
    return elements * job.activation_bytes / (mesh["context"] * tensor)


def _to_experts(priced: PricedLayout) -> Iterator[PricedItem]:
    """Tokens to experts and back, forward and backward: four exchanges in a routed layer.

    Each chip sends its tokens once for each of their k experts, in buffers of equal size (k n / E
    tokens for an expert). Whole experts on chips of `tensor` are reached over both axes. Where
    `tensor` splits the experts, its chips send the tokens of their parts of the sequence, and what
    has arrived is gathered over it: k copies of a token (Megatron Core's alltoall dispatcher).
    Without sequence parallelism every chip of `tensor` sends all tokens, and nothing is gathered.
    """
    mesh, layout, job = priced.mesh, priced.layout, priced.job
    whole = layout.expert_tensor == 1
    axes = ("tensor", "expert") if whole else ("expert",)
    of_tensor = mesh["tensor"] if layout.sequence_parallel or whole else 1
    for group in priced.config.groups:
        if not isinstance(moe := group.layer.ffn, Moe):
            continue
        width = moe.d_latent or priced.config.d_model
        tokens = layout.micro_batch * job.seq * width * job.activation_bytes
        tokens = tokens / mesh["context"]
        local, k = tokens / of_tensor, moe.experts_per_token
        send_once, n_bytes = None, local * k * shards(axes, mesh)
        if priced.rates.kernels.once:
            send_once, n_bytes = SendOnce(experts=k), local
        for phase in ("forward", "backward"):
            for name, what in ((DISPATCH, "tokens to their experts"), (COMBINE, "tokens back")):
                yield priced.collective(
                    name=name,
                    phase=phase,
                    part=_part(name, phase),
                    role="expert",
                    kind="all_to_all",
                    send_once=send_once,
                    axes=axes,
                    what=what if phase == "forward" else f"gradients of {what}",
                    count=group.count,
                    joined_bytes=n_bytes,
                )
        if whole and not layout.sequence_parallel and not moe.d_ff_shared:
            yield from _joined(priced, group.count, tokens)
        elif not whole and layout.sequence_parallel:
            ways = minimum(layout.expert_tensor or mesh["tensor"], mesh["tensor"])
            count = where(mesh["expert"] > 1, group.count, 0)
            yield from _gathered(priced, count, local * k * ways)


def _part(name: str, phase: str) -> str:
    """The part of a layer whose remat repeats an exchange."""
    return DISPATCH if (name, phase) == (DISPATCH, "forward") else ""


def _gathered(priced: PricedLayout, count: Num, n_bytes: Num) -> Iterator[PricedItem]:
    """Tokens that have arrived, for the parts of their experts on the chips of `tensor`."""
    for phase, name, kind in (
        ("forward", DISPATCH, "all_gather"),
        ("forward", COMBINE, "reduce_scatter"),
        ("backward", COMBINE, "all_gather"),
        ("backward", DISPATCH, "reduce_scatter"),
    ):
        yield priced.collective(
            name=name,
            phase=phase,
            part=_part(name, phase),
            role="tensor",
            kind=kind,
            axes=("tensor",),
            what="tokens of experts",
            count=count,
            joined_bytes=n_bytes,
        )


def _joined(priced: PricedLayout, count: Num, n_bytes: Num) -> Iterator[PricedItem]:
    """Parts of the sequence that come back from whole experts to a residual that is not split."""
    for phase, name in (("forward", COMBINE), ("backward", DISPATCH)):
        yield priced.collective(
            name=name,
            phase=phase,
            role="tensor",
            kind="all_gather",
            axes=("tensor",),
            what="tokens back from experts",
            count=count,
            joined_bytes=n_bytes,
        )


def occurrences(transfer: Transfer, priced: PricedLayout) -> Num:
    """How often a collective of the algebra happens where it is one: 0 where tokens are sent to
    their experts and the residual need not be gathered for them, nor summed after them.

    A ring under full remat goes round once more: its first round leaves no keys and values behind.
    """
    layout, mesh = priced.layout, priced.mesh
    ring = layout.context_kind == "ring" and transfer.move.kind == "all_gather"
    if transfer.role == "context" and transfer.phase == "remat" and ring:
        return 1.0 + priced.remat_share
    if transfer.role != "tensor":
        return 1.0
    share = priced.remat_share if transfer.phase == "remat" else 1.0
    ffn = priced.config.groups[transfer.group].layer.ffn
    base = transfer.move.before.base
    if not (transfer.term.module == "moe" and base in RESIDUAL and isinstance(ffn, Moe)):
        return share
    if ffn.d_ff_shared and base not in NARROW:
        return share
    if layout.expert_tensor == 1:
        return 0.0
    return where(mesh["expert"] > 1, 0.0, share) if layout.sequence_parallel else share


def _heads_for_tokens(priced: PricedLayout) -> Iterator[PricedItem]:
    """Ulysses: queries, keys and values leave with all their tokens and some heads, the attended
    come back: each an AllToAll, forward and backward (arXiv 2309.14509, section 3).

    Where chips are more than KV heads, every one of them receives one: heads are sent more than
    once.
    """
    mesh, layout, job = priced.mesh, priced.layout, priced.job
    tokens = layout.micro_batch * job.seq * job.activation_bytes
    phases = ("forward", "remat", "backward") if layout.full_remat else ("forward", "backward")
    chips = mesh["tensor"] * mesh["context"]
    for a, n in priced.config.attentions:
        kv_heads = maximum(a.n_kv_heads, chips)
        widths = {
            "queries": a.n_heads * a.d_head,
            "keys": kv_heads * a.d_head,
            "values": kv_heads * a.d_head_v,
            "attended": a.n_heads * a.d_head_v,
        }
        for phase in phases:
            for what, width in widths.items():
                yield priced.collective(
                    name=f"attn.{what}",
                    phase=phase,
                    role="context",
                    kind="all_to_all",
                    axes=("context",),
                    what=what if phase != "backward" else f"gradients of {what}",
                    count=n * (priced.remat_share if phase == "remat" else 1),
                    joined_bytes=tokens * width / mesh["tensor"],
                )


def _states(priced: PricedLayout) -> Iterator[PricedItem]:
    """Scans over `context`: the state at the end of each chip's tokens, gathered by all, forward
    and backward (arXiv 2405.21060, section 8.2)."""
    mesh = priced.mesh
    for m, n in priced.config.mambas:
        local = priced.layout.micro_batch * m.d_inner * m.d_state / mesh["tensor"]
        for phase in ("forward", "backward"):
            yield priced.collective(
                name="mamba.states",
                phase=phase,
                role="context",
                kind="all_gather",
                axes=("context",),
                what="states of scans",
                count=n,
                joined_bytes=local * mesh["context"] * priced.job.activation_bytes,
            )


def between_stages(priced: PricedLayout) -> Iterator[PricedItem]:
    """Activations of one microbatch to the next stage, their gradients to the one before.

    Ranks that hold the same residual send a part each, and join the parts on arrival
    (arXiv 2104.04473, section 4.1; DeepSpeed's pipe_partitioned).
    """
    layout = priced.layout
    if not layout.is_pipelined:
        return
    n_bytes = residual_bytes(priced)
    parts = 1 if layout.sequence_parallel else priced.mesh["tensor"]
    for phase, what in (("forward", "activations"), ("backward", "gradients of activations")):
        moves = [("stage.send", "permute", ("pipe",), n_bytes / parts)]
        if not layout.sequence_parallel:
            moves.append(("stage.join", "all_gather", ("tensor",), n_bytes))
        for name, kind, axes, joined_bytes in moves:
            yield priced.collective(
                name=name,
                phase=phase,
                role="pipe",
                kind=kind,
                axes=axes,
                what=what,
                count=priced.stage.passes,
                joined_bytes=joined_bytes,
            )
