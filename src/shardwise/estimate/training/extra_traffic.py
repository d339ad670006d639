"""Collectives of a training step outside the sharding algebra.

Dispatch and combine of experts, Ulysses, states of scans, sends between pipeline stages.
"""

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

LATENT_RESIDUAL = ("cx", "cy")  # latent input and output, the only ones of experts that have them
DISPATCH, COMBINE = "moe.dispatch", "moe.combine"


def extra_traffic(priced: PricedLayout) -> Iterator[PricedItem]:
    """Collectives of all layers for one microbatch.

    Remat that drops the inputs of experts repeats the dispatch of the forward pass, but not the
    combine: tokens are weighted before the last matmul, whose output nothing reads.
    """
    yield from _expert_traffic(priced)
    if priced.layout.context_kind == "ulysses":
        yield from _ulysses_traffic(priced)
    yield from _scan_traffic(priced)


def residual_bytes(priced: PricedLayout) -> Num:
    """Bytes of one microbatch's residual on a chip, sharded as between blocks."""
    mesh = priced.mesh
    layout = priced.layout
    tensor = mesh["tensor"] if layout.sequence_parallel else 1
    elements = layout.micro_batch * priced.job.seq * priced.config.d_model
    return elements * priced.job.activation_bytes / (mesh["context"] * tensor)


def _expert_traffic(priced: PricedLayout) -> Iterator[PricedItem]:
    """Dispatch and combine, forward and backward: four AllToAlls in a routed layer.

    Each chip sends its tokens once for each of their k experts, in buffers of equal size (k n / E
    tokens for an expert). Whole experts on chips of `tensor` are reached over both axes. Where
    `tensor` shards the experts, its chips send the tokens of their parts of the sequence, and what
    arrives is gathered over it: k copies of a token (Megatron Core's alltoall dispatcher). Without
    sequence parallelism every chip of `tensor` sends all tokens, and nothing is gathered.
    """
    mesh = priced.mesh
    layout = priced.layout
    whole_experts = layout.expert_tensor == 1
    axes = ("tensor", "expert") if whole_experts else ("expert",)
    token_shards = mesh["tensor"] if layout.sequence_parallel or whole_experts else 1
    for group in priced.config.groups:
        moe = group.layer.ffn
        if not isinstance(moe, Moe):
            continue
        width = moe.d_latent or priced.config.d_model
        token_bytes = layout.micro_batch * priced.job.seq * width * priced.job.activation_bytes
        token_bytes = token_bytes / mesh["context"]
        local_bytes = token_bytes / token_shards
        k = moe.experts_per_token
        send_once = None
        joined_bytes = local_bytes * k * shards(axes, mesh)
        if priced.rates.fusion.send_once:
            send_once = SendOnce(experts_per_token=k)
            joined_bytes = local_bytes
        for phase in ("forward", "backward"):
            for name, what in ((DISPATCH, "tokens to their experts"), (COMBINE, "tokens back")):
                yield priced.collective(
                    name=name,
                    phase=phase,
                    part=_remat_part(name, phase),
                    role="expert",
                    kind="all_to_all",
                    send_once=send_once,
                    axes=axes,
                    description=what if phase == "forward" else f"gradients of {what}",
                    count=group.count,
                    joined_bytes=joined_bytes,
                )
        if whole_experts and not layout.sequence_parallel and not moe.d_ff_shared:
            yield from _residual_gathers(priced, group.count, token_bytes)
        elif not whole_experts and layout.sequence_parallel:
            copies = minimum(layout.expert_tensor or mesh["tensor"], mesh["tensor"])
            count = where(mesh["expert"] > 1, group.count, 0)
            yield from _tensor_gathers(priced, count, local_bytes * k * copies)


def _remat_part(name: str, phase: str) -> str:
    """Part of a layer whose remat repeats an exchange."""
    return DISPATCH if (name, phase) == (DISPATCH, "forward") else ""


def _tensor_gathers(priced: PricedLayout, count: Num, n_bytes: Num) -> Iterator[PricedItem]:
    """Gathers of dispatched tokens over `tensor`, which shards their experts, and their inverse."""
    for phase, name, kind in (
        ("forward", DISPATCH, "all_gather"),
        ("forward", COMBINE, "reduce_scatter"),
        ("backward", COMBINE, "all_gather"),
        ("backward", DISPATCH, "reduce_scatter"),
    ):
        yield priced.collective(
            name=name,
            phase=phase,
            part=_remat_part(name, phase),
            role="tensor",
            kind=kind,
            axes=("tensor",),
            description="tokens of experts",
            count=count,
            joined_bytes=n_bytes,
        )


def _residual_gathers(priced: PricedLayout, count: Num, n_bytes: Num) -> Iterator[PricedItem]:
    """Gathers of the sequence after whole experts, for a residual that `tensor` replicates."""
    for phase, name in (("forward", COMBINE), ("backward", DISPATCH)):
        yield priced.collective(
            name=name,
            phase=phase,
            role="tensor",
            kind="all_gather",
            axes=("tensor",),
            description="tokens back from experts",
            count=count,
            joined_bytes=n_bytes,
        )


def occurrences(transfer: Transfer, priced: PricedLayout) -> Num:
    """Occurrences of a collective of the algebra, per one that the algebra counts.

    0 where tokens are dispatched to their experts, and the residual need not be gathered before
    them or summed after them. A ring under full remat runs a second time: the first does not keep
    its keys and values.
    """
    layout = priced.layout
    is_ring = layout.context_kind == "ring" and transfer.move.kind == "all_gather"
    if transfer.role == "context" and transfer.phase == "remat" and is_ring:
        return 1.0 + priced.remat_share
    if transfer.role != "tensor":
        return 1.0
    share = priced.remat_share if transfer.phase == "remat" else 1.0
    ffn = priced.config.groups[transfer.group].layer.ffn
    base = transfer.move.before.base
    if not (transfer.term.module == "moe" and base in RESIDUAL and isinstance(ffn, Moe)):
        return share
    if ffn.d_ff_shared and base not in LATENT_RESIDUAL:
        return share
    if layout.expert_tensor == 1:
        return 0.0
    if layout.sequence_parallel:
        return where(priced.mesh["expert"] > 1, 0.0, share)
    return share


def _ulysses_traffic(priced: PricedLayout) -> Iterator[PricedItem]:
    """AllToAlls of Ulysses, forward and backward (arXiv 2309.14509, section 3).

    Queries, keys and values are resharded from tokens to heads, the attended values back. Where
    there are more chips than KV heads, every chip receives one: heads are sent several times.
    """
    mesh = priced.mesh
    layout = priced.layout
    token_bytes = layout.micro_batch * priced.job.seq * priced.job.activation_bytes
    counts: dict[str, float] = {"forward": 1, "backward": 1}
    if layout.full_remat:
        counts = {"forward": 1, "remat": priced.remat_share, "backward": 1}
    n_chips = mesh["tensor"] * mesh["context"]
    for attention, n_layers in priced.config.attentions:
        kv_heads = maximum(attention.n_kv_heads, n_chips)
        widths = {
            "queries": attention.n_heads * attention.d_head,
            "keys": kv_heads * attention.d_head,
            "values": kv_heads * attention.d_head_v,
            "attended": attention.n_heads * attention.d_head_v,
        }
        for phase, count in counts.items():
            for what, width in widths.items():
                yield priced.collective(
                    name=f"attn.{what}",
                    phase=phase,
                    role="context",
                    kind="all_to_all",
                    axes=("context",),
                    description=f"gradients of {what}" if phase == "backward" else what,
                    count=n_layers * count,
                    joined_bytes=token_bytes * width / mesh["tensor"],
                )


def _scan_traffic(priced: PricedLayout) -> Iterator[PricedItem]:
    """Gathers of scan states over `context`, forward and backward (arXiv 2405.21060, section 8.2).

    Each chip gathers the states at the end of all chips' tokens.
    """
    mesh = priced.mesh
    for mamba, n_layers in priced.config.mambas:
        elements = priced.layout.micro_batch * mamba.d_inner * mamba.d_state / mesh["tensor"]
        for phase in ("forward", "backward"):
            yield priced.collective(
                name="mamba.states",
                phase=phase,
                role="context",
                kind="all_gather",
                axes=("context",),
                description="states of scans",
                count=n_layers,
                joined_bytes=elements * mesh["context"] * priced.job.activation_bytes,
            )


def between_stages(priced: PricedLayout) -> Iterator[PricedItem]:
    """Sends of one microbatch's activations to the next stage, and of gradients back.

    Ranks with the same residual send a part each, and gather the parts on arrival
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
                description=what,
                count=priced.stage.passes,
                joined_bytes=joined_bytes,
            )
