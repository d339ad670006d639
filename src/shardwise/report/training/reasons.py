"""The reasons of a training plan, and the costs of its alternatives, as sentences."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from shardwise import units
from shardwise.plan.schema.common import Loss, Reason
from shardwise.plan.schema.training_reasons import (
    Bubble,
    Communication,
    KvHeads,
    MaxSeq,
    MemoryRoom,
    NoPipelines,
    NotInFramework,
    NotTrained,
    Overlap,
    Padding,
    TensorSplit,
    TokenPrediction,
    TokensPerChip,
    TokensPerSlice,
    UsualSettings,
)
from shardwise.plan.training.limit_text import limit_text
from shardwise.report.words import counted, duration, listed, mesh_text, percent

# Part of a step on the chip -> its name in a sentence. Collectives have the names of mesh roles.
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
        case TokenPrediction():
            return f"Multi-token prediction: {_token_prediction(reason)}."
        case UsualSettings():
            return f"Kernels: {_usual_settings(reason)}."
        case NoPipelines():
            return no_pipelines(reason)
        case NotInFramework():
            return f"{reason.framework} does not run {reason.asked}: {reason.has}."
        case NotTrained():
            return f"The trainer does not run this: {limit_text(reason.limit)}"
    raise TypeError(f"no sentence for {type(reason).__name__}")


def run_lines(why: Iterable[Reason]) -> Iterator[tuple[str, str]]:
    """Lines among the reasons of a plan on multi-token prediction and on usual kernels, if any."""
    for reason in why:
        if isinstance(reason, TokenPrediction):
            yield "mtp", _token_prediction(reason)
        elif isinstance(reason, UsualSettings):
            yield "kernels", _usual_settings(reason)


def _usual_settings(reason: UsualSettings) -> str:
    """Settings and the runs that have them: `cuda_graphs, as in 12 of 12 published runs ...`."""
    overlap = f", overlap {', '.join(reason.overlap)}" if reason.overlap else ""
    return (
        f"{', '.join(reason.kernels)}{overlap}, as in {reason.n_stating} of {reason.n_runs} "
        f"published runs of such models under {reason.framework} on {reason.chip} since "
        f"{reason.since}; --kernels none plans without"
    )


def _token_prediction(reason: TokenPrediction) -> str:
    """Layers of multi-token prediction and what they add to a step of this layout."""
    place = " on the last stage" if reason.on_last_stage else ""
    return (
        f"{counted(reason.layers, 'layer')}{place}: +{duration(reason.step_s)}, "
        f"+{units.show_gib(reason.memory_bytes)} on the fullest chip of this layout"
    )


def no_pipelines(reason: NoPipelines) -> str:
    """That the search has left out pipelines, and what searches them."""
    return (
        f"Pipelines are not searched: the trainer runs none of a model with {reason.n_groups} "
        "groups of different layers. --any-layout searches them."
    )


def loss_text(loss: Loss) -> str:
    """The main disadvantage of another split: `51 ms more pipeline bubble`."""
    if loss.kind == "memory":
        return f"needs ×{loss.amount:.2f} of the available memory"
    if loss.kind == "none":
        return "equally fast"
    if loss.part not in ON_CHIP:
        return f"{duration(loss.amount)} more exposed {loss.part} traffic"
    text = f"{duration(loss.amount)} more {ON_CHIP[loss.part]}"
    if loss.remat:
        text += f", remat {loss.remat}"
    return text


def _communication(reason: Communication) -> str:
    on_chip = duration(reason.on_chip_s)
    if reason.margin < 1:
        role = max(reason.traffic_s, key=lambda name: reason.traffic_s[name])
        return (
            f"Communication-bound by ×{1 / reason.margin:.1f}: at peak rates {role} traffic takes "
            f"{duration(reason.traffic_s[role])}, on-chip work {on_chip}."
        )
    hidden_s: dict[str, float] = {}
    exposed_s: dict[str, float] = {}
    for role, seconds in reason.traffic_s.items():
        if role in reason.hidden:
            hidden_s[role] = seconds
        else:
            exposed_s[role] = seconds
    if not hidden_s:
        return f"At peak rates {_times(exposed_s)} traffic is exposed."
    text = f"At peak rates {on_chip} of on-chip work can hide {_times(hidden_s)} traffic"
    if exposed_s:
        text += f"; {_times(exposed_s)} is exposed"
    return f"{text}."


def _tensor(reason: TensorSplit) -> str:
    with_or_without = "without" if reason.constraint == "tensor" else "with"
    split = f"The best split {with_or_without} tensor parallelism ({mesh_text(reason.mesh)})"
    loss = loss_text(reason.loses_on)
    if reason.traffic_s > reason.on_chip_s:
        ratio = reason.traffic_s / reason.on_chip_s
        loss = f"communication-bound by ×{ratio:.1f} ({reason.role} traffic)"
        if not reason.fits:
            loss = f"is {loss}"
    if not reason.fits:
        return f"{split} {loss}."
    return f"{split} takes {duration(reason.step_s)}: {loss}."


def _tokens_per_chip(reason: TokensPerChip) -> str:
    rate = units.show_rate(reason.bytes_per_s, "B/s")
    axes = counted(reason.axes, "ICI axis")
    network = {"ici": f"over {axes}", "scale_out": "per node", "node": "within the node"}
    ratio = f"peak FLOP/s ÷ {rate} {network[reason.network]}"
    if reason.n_experts > 1:
        ratio += f" × {reason.n_experts}/{reason.experts_per_token} experts"
    unit = "tokens per chip"
    if reason.n_microbatches > 1:
        unit += " and microbatch"
    return (
        f"Pure data sharding needs {reason.needed:,.0f} {unit} to hide its traffic "
        f"({ratio}); there are {reason.tokens:,.0f}."
    )


def _tokens_per_slice(reason: TokensPerSlice) -> str:
    return (
        f"Traffic of {listed(reason.roles)} crosses {reason.n_slices} slices: hiding "
        f"gradients there needs {reason.needed:,.0f} tokens per slice (peak FLOP/s ÷ "
        f"{units.show_rate(reason.bytes_per_s, 'B/s')} of DCN); there are "
        f"{units.show_count(reason.tokens)}."
    )


def _bubble(reason: Bubble) -> str:
    stages = f"{reason.stages} stages"
    if reason.chunks > 1:
        stages += f" of {reason.chunks} chunks"
    text = (
        f"{percent(reason.share)} of the step is pipeline bubble: {reason.n_microbatches:,} "
        f"microbatches of {reason.micro_batch} through {stages} ({reason.schedule})"
    )
    if reason.spare:
        text += f", {counted(reason.spare, 'empty layer slot')}"
    return f"{text}."


def _overlap(reason: Overlap) -> str:
    text = (
        f"Assumes that {_times(reason.hidden_s)} traffic overlaps with compute. Without overlap "
        f"this split takes {duration(reason.without_s)}"
    )
    if reason.best_mesh is None:
        return f"{text}."
    return f"{text}; the best one then is {mesh_text(reason.best_mesh)}, {duration(reason.best_s)}."


def _memory(reason: MemoryRoom) -> str:
    text = f"{units.show_gib(reason.total)} of {units.show_gib(reason.capacity)} HBM"
    if reason.reserved:
        text += f" ({units.show_gib(reason.reserved)} reserved)"
    text += f", remat {reason.remat}"
    if reason.n_microbatches > 1:
        text += f", {reason.n_microbatches} microbatches"
    return f"{text}."


def _times(seconds_by_role: Mapping[str, float]) -> str:
    """Seconds by role in words: `293 ms of fsdp and 22.7 ms of data`."""
    return listed([f"{duration(seconds)} of {role}" for role, seconds in seconds_by_role.items()])
