"""Collectives of a training step that the sharding algebra does not derive.

These are dispatch and combine of experts, the AllToAlls of Ulysses, gathers of the states of SSM
scans, and sends between pipeline stages.
"""

from __future__ import annotations

from collections.abc import Iterator

from shardwise import units
from shardwise.arrays import Num, maximum, where
from shardwise.estimate.items import PricedItem
from shardwise.estimate.routing import SendOnce
from shardwise.estimate.training.priced_layout import PricedLayout
from shardwise.models import Moe
from shardwise.ops.einsum import shards
from shardwise.ops.layers import RESIDUAL
from shardwise.ops.program import Transfer
from shardwise.strategy.layout import expert_sharers

# Names of the latent input and output of experts. Shared experts do not use them.
LATENT_RESIDUAL = ("cx", "cy")
# Bytes of an element of a token that is sent in 8 bits: each 128 have a scale in fp32.
NARROW_BYTES = 1 + 4 / 128
DISPATCH = "moe.dispatch"
COMBINE = "moe.combine"


def extra_traffic(priced: PricedLayout) -> Iterator[PricedItem]:
    """Priced collectives of all layers for one microbatch.

    Remat of the experts' inputs repeats the dispatch of the forward pass. It does not repeat the
    combine, because the backward pass does not read the output of the experts: tokens are weighted
    before the last matmul.
    """
    yield from _expert_traffic(priced)
    if priced.layout.context_kind == "ulysses":
        yield from _ulysses_traffic(priced)
    yield from _scan_traffic(priced)


def residual_bytes(priced: PricedLayout) -> Num:
    """Bytes on one chip of one microbatch's residual, with its sharding between blocks."""
    mesh = priced.mesh
    layout = priced.layout
    tensor = mesh["tensor"] if layout.sequence_parallel else 1
    elements = layout.micro_batch * priced.job.seq * priced.config.d_model
    return elements * priced.job.activation_bytes / (mesh["context"] * tensor)


def _expert_traffic(priced: PricedLayout) -> Iterator[PricedItem]:
    """Dispatch and combine, forward and backward: four AllToAlls in a routed layer.

    Each chip sends each of its n tokens to the k experts of the token, in buffers of equal size
    (k n / E tokens for each of the E experts).

    - `expert_tensor` 1: the chips of `tensor` hold different whole experts, and the AllToAll runs
      over `tensor` and `expert`.
    - `tensor` shards each expert, with sequence parallelism: each chip of `tensor` sends the tokens
      of its part of the sequence, and the tokens that arrive, k copies of each, are gathered over
      `tensor` (Megatron Core's alltoall dispatcher).
    - `tensor` shards each expert, without sequence parallelism: every chip of `tensor` sends all
      tokens, and nothing needs to be gathered.
    """
    mesh = priced.mesh
    layout = priced.layout
    whole_experts = layout.expert_tensor == 1
    axes = ("tensor", "expert") if whole_experts else ("expert",)
    token_shards = mesh["tensor"] if layout.sequence_parallel or whole_experts else 1
    for moe, n_layers in priced.config.moes:
        width = moe.d_latent or priced.config.d_model
        token_bytes = layout.micro_batch * priced.job.seq * width * priced.job.activation_bytes
        token_bytes = token_bytes / mesh["context"]
        local_bytes = token_bytes / token_shards
        k = moe.experts_per_token
        send_once = None
        joined_bytes = local_bytes * k * shards(axes, mesh)
        if priced.rates.fusion.send_once:
            groups = moe.routing.n_groups, moe.routing.top_groups
            send_once = SendOnce(experts_per_token=k, n_groups=groups[0], top_groups=groups[1])
            n_chips = shards(axes, mesh)
            joined_bytes = local_bytes * send_once.copies(n_chips) * n_chips
        for phase in ("forward", "backward"):
            for name, tokens in ((DISPATCH, "tokens to their experts"), (COMBINE, "tokens back")):
                yield priced.collective(
                    name=name,
                    phase=phase,
                    part=_remat_part(name, phase),
                    role="expert",
                    kind="all_to_all",
                    send_once=send_once,
                    axes=axes,
                    description=tokens if phase == "forward" else f"gradients of {tokens}",
                    count=n_layers,
                    joined_bytes=joined_bytes * _dispatch_share(priced, name, phase),
                )
        if whole_experts and not layout.sequence_parallel and not moe.d_ff_shared:
            yield from _residual_gathers(priced, n_layers, token_bytes)
        elif not whole_experts and layout.sequence_parallel:
            copies = expert_sharers(layout.expert_tensor, mesh)
            count = where(mesh["expert"] > 1, n_layers, 0)
            yield from _tensor_gathers(priced, count, local_bytes * k * copies)


def _dispatch_share(priced: PricedLayout, name: str, phase: str) -> float:
    """Bytes of a token on its way to experts, or from them, relative to its activations.

    With `narrow_dispatch`, tokens and gradients go to the experts in 8 bits with a scale for each
    block of 128, and come back in 16 bits (DeepSeek-V3, section 3.3.3).
    """
    job = priced.job
    to_experts = (name == DISPATCH) == (phase == "forward")
    is_narrow = priced.rates.fusion.narrow_dispatch and units.bytes_per_element(job.compute) <= 1
    return NARROW_BYTES / job.activation_bytes if is_narrow and to_experts else 1.0


def _remat_part(name: str, phase: str) -> str:
    """Part of a layer whose remat repeats the collective; "" if remat does not repeat it."""
    return DISPATCH if (name, phase) == (DISPATCH, "forward") else ""


def _tensor_gathers(priced: PricedLayout, count: Num, n_bytes: Num) -> Iterator[PricedItem]:
    """AllGathers of dispatched tokens over `tensor`, which shards each expert, and ReduceScatters.

    The ReduceScatters undo the gathers: those of the results, and of the tokens' gradients.
    """
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
    """AllGathers of results over `tensor`, whose chips hold different experts (`expert_tensor` 1).

    They are needed without sequence parallelism, where `tensor` replicates the residual.
    """
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
    """Factor by which to multiply the number of occurrences of a collective in the program.

    - 0 for gathers of the residual before routed experts, and its sums after them, if tokens are
      dispatched to the experts instead.
    - `remat_share` for collectives over `tensor` that remat repeats.
    - 1 + `remat_share` for ring attention under full remat: keys and values travel once more for
      the recomputed forward pass, and again for the backward pass, as the ring does not keep them.
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

    Queries, keys and values are resharded from tokens to heads, and the output of attention back
    to tokens. If there are more chips than KV heads, each head is sent to several chips.
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
            for name, width in widths.items():
                yield priced.collective(
                    name=f"attn.{name}",
                    phase=phase,
                    role="context",
                    kind="all_to_all",
                    axes=("context",),
                    description=f"gradients of {name}" if phase == "backward" else name,
                    count=n_layers * count,
                    joined_bytes=token_bytes * width / mesh["tensor"],
                )


def _scan_traffic(priced: PricedLayout) -> Iterator[PricedItem]:
    """AllGathers of SSM states over `context` (arXiv 2405.21060, section 8.2).

    Each chip gathers the state at the end of every chip's tokens, in the forward pass, and the
    gradients of these states in the backward pass.
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
    """Sends of one microbatch's activations to the next stage, and of their gradients back.

    Chips of `tensor` that hold the same residual each send a part of it, and gather the parts on
    arrival (arXiv 2104.04473, section 4.1; DeepSpeed's pipe_partitioned).
    """
    layout = priced.layout
    if not layout.is_pipelined:
        return
    n_bytes = residual_bytes(priced)
    parts = 1 if layout.sequence_parallel else priced.mesh["tensor"]
    for phase, arrays in (("forward", "activations"), ("backward", "gradients of activations")):
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
                description=arrays,
                count=priced.stage.passes,
                joined_bytes=joined_bytes,
            )
