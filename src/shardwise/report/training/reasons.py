"""Reasons and losses of a training plan, in words."""

from __future__ import annotations

from collections.abc import Mapping

from shardwise import units
from shardwise.plan.schema.common import Loss, Reason
from shardwise.plan.schema.training_reasons import (
    Bubble,
    Communication,
    KvHeads,
    MaxSeq,
    MemoryRoom,
    Overlap,
    Padding,
    TensorSplit,
    TokensPerChip,
    TokensPerSlice,
)
from shardwise.report.words import listed, mesh_text, percent

ms = units.show_seconds
# Parts of a step that are no collective; all others are roles of the mesh.
ON_CHIP = {
    "layers": "on-chip work",
    "ends": "work in the embedding and the head",
    "bubble": "pipeline bubble",
    "update": "optimizer work",
}


def reason_text(reason: Reason) -> str:
    """A reason of a plan as a sentence."""
    match reason:
        case Communication():
            return _communication(reason)
        case TensorSplit():
            return _tensor(reason)
        case TokensPerChip():
            return _tokens_per_chip(reason)
        case TokensPerSlice():
            return _tokens_per_slice(reason)
        case Bubble():
            return _bubble(reason)
        case Overlap():
            return _overlap(reason)
        case Padding():
            return (
                f"A vocabulary of {reason.vocab:,} does not divide by tensor {reason.tensor}: it "
                f"is padded to {reason.padded:,}."
            )
        case KvHeads():
            heads = "The key/value head"
            if reason.n_kv_heads > 1:
                heads = f"Each of {reason.n_kv_heads} key/value heads"
            return f"{heads} is held by {reason.copies} chips."
        case MaxSeq():
            return (
                f"Sequences have {reason.seq:,} tokens; the model is specified for "
                f"{reason.max_seq:,}."
            )
        case MemoryRoom():
            return _memory(reason)
    raise TypeError(f"no words for {type(reason).__name__}")


def loss_text(loss: Loss) -> str:
    """What another split loses on."""
    if loss.kind == "memory":
        return f"needs ×{loss.amount:.2f} of the memory there is"
    if loss.kind == "none":
        return "equally fast"
    if loss.part not in ON_CHIP:
        return f"{ms(loss.amount)} more exposed {loss.part} traffic"
    policy = f", remat {loss.remat}" if loss.remat else ""
    return f"{ms(loss.amount)} more {ON_CHIP[loss.part]}{policy}"


def _communication(reason: Communication) -> str:
    on_chip = ms(reason.on_chip_s)
    if reason.margin < 1:
        role = max(reason.traffic_s, key=lambda r: reason.traffic_s[r])
        return (
            f"Communication-bound by ×{1 / reason.margin:.1f}: at peak rates {role} traffic takes "
            f"{ms(reason.traffic_s[role])}, on-chip work {on_chip}."
        )
    hides = {r: t for r, t in reason.traffic_s.items() if r in reason.hidden}
    waits = {r: t for r, t in reason.traffic_s.items() if r not in reason.hidden}
    if not hides:
        return f"At peak rates layers wait for {_times(waits)} traffic."
    text = f"At peak rates {on_chip} of on-chip work can hide {_times(hides)} traffic"
    return f"{text}; layers wait for {_times(waits)}." if waits else f"{text}."


def _tensor(reason: TensorSplit) -> str:
    with_or_without = "without" if reason.constraint == "tensor" else "with"
    split = f"The best split {with_or_without} tensor parallelism ({mesh_text(reason.mesh)})"
    if reason.traffic_s > reason.on_chip_s:
        over = reason.traffic_s / reason.on_chip_s
        bound = f"communication-bound by ×{over:.1f} ({reason.role} traffic)"
        return (
            f"{split} takes {ms(reason.step_s)}: {bound}."
            if reason.fits
            else f"{split} is {bound}."
        )
    loss = loss_text(reason.loses_on)
    if not reason.fits:
        return f"{split} {loss}."
    return f"{split} takes {ms(reason.step_s)}: {loss}."


def _tokens_per_chip(reason: TokensPerChip) -> str:
    rate = units.show_rate(reason.bytes_per_s, "B/s")
    axes = f"{reason.axes} ICI ax{'i' if reason.axes == 1 else 'e'}s"
    over = {"ici": f"over {axes}", "scale_out": "per node", "node": "within the node"}
    ratio = f"peak FLOP/s ÷ {rate} {over[reason.network]}"
    if reason.n_experts > 1:
        ratio += f" × {reason.n_experts}/{reason.experts_per_token} experts"
    per = "per chip" if reason.n_microbatches == 1 else "per chip and microbatch"
    return (
        f"Pure data sharding needs {reason.needed:,.0f} tokens {per} to hide its traffic "
        f"({ratio}); there are {reason.tokens:,.0f}."
    )


def _tokens_per_slice(reason: TokensPerSlice) -> str:
    crosses = "crosses" if len(reason.roles) == 1 else "cross"
    return (
        f"{listed(reason.roles)} {crosses} {reason.n_slices} slices: hiding gradients there needs "
        f"{reason.needed:,.0f} tokens per slice (peak FLOP/s ÷ "
        f"{units.show_rate(reason.bytes_per_s, 'B/s')} of DCN); there are "
        f"{units.show_count(reason.tokens)}."
    )


def _bubble(reason: Bubble) -> str:
    chunks = f" of {reason.chunks} chunks" if reason.chunks > 1 else ""
    text = (
        f"{percent(reason.share)} of the step is pipeline bubble: {reason.n_microbatches:,} "
        f"microbatches of {reason.micro_batch} through {reason.stages} stages{chunks} "
        f"({reason.schedule})"
    )
    if not reason.spare:
        return f"{text}."
    slots = "1 layer slot stays" if reason.spare == 1 else f"{reason.spare} layer slots stay"
    return f"{text}, {slots} empty."


def _overlap(reason: Overlap) -> str:
    text = (
        f"Assumes that {_times(reason.hidden_s)} traffic overlaps with compute. Without overlap "
        f"this split takes {ms(reason.without_s)}"
    )
    if reason.best_mesh is None:
        return f"{text}."
    return f"{text}; the best one then is {mesh_text(reason.best_mesh)}, {ms(reason.best_s)}."


def _memory(reason: MemoryRoom) -> str:
    free = f" ({units.show_gib(reason.reserved)} reserved)" if reason.reserved else ""
    n = reason.n_microbatches
    cut = f", {n} microbatches" if n > 1 else ""
    return (
        f"{units.show_gib(reason.total)} of {units.show_gib(reason.capacity)} HBM{free}, remat "
        f"{reason.remat}{cut}."
    )


def _times(times: Mapping[str, float]) -> str:
    """`293 ms of fsdp and 22.7 ms of data`."""
    return listed([f"{ms(seconds)} of {role}" for role, seconds in times.items()])
