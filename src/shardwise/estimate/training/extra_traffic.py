"""What a step sends beside the sharding algebra: tokens to experts, heads for tokens, states of
scans, activations to the next stage.

Each is a list of `Sent`, of which the estimate takes the seconds and the plan the bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from shardwise.arrays import Num, maximum, minimum, where
from shardwise.estimate.collective_cost import Prices
from shardwise.estimate.routing import SENT_ONCE
from shardwise.estimate.training.chip_rates import Rates
from shardwise.models import ModelConfig, Moe
from shardwise.ops.collective import SHOWN
from shardwise.ops.einsum import axes_text, shards
from shardwise.ops.layers import RESIDUAL
from shardwise.ops.program import Transfer, base_name
from shardwise.strategy.layout import Form, Layout, Layouts
from shardwise.strategy.stages import Stages

NARROW = ("cx", "cy")  # experts on a latent read and write these and nothing else
DISPATCH, COMBINE = "moe.dispatch", "moe.combine"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One collective, `count` times in a microbatch (of gradients and weights: in a step).

    Args:
        what: the array, in words.
        n_bytes: of one occurrence, summed over the shards that it joins (V of the book).
        parts: arrays that travel as one in the estimate, each in a collective of its own.
    """

    name: str
    phase: str
    role: str
    kind: str
    axes: tuple[str, ...]
    what: str
    count: Num
    n_bytes: Num
    parts: int = 1

    def time_s(self, prices: Prices, rates: Rates, mesh: Mapping[str, Num]) -> Num:
        """Seconds of all occurrences."""
        return self.count * rates.send_s(prices, self.kind, self.axes, self.n_bytes, mesh)

    def text(self, axes: tuple[str, ...]) -> str:
        """`AllToAll_expert(tokens back)`; a move of the algebra says so itself."""
        shown = SHOWN[self.kind]
        if not axes or self.what.startswith(shown):
            return self.what
        return f"{shown}_{axes_text(axes)}({self.what})"


def exchanges(config: ModelConfig, split: Layout | Layouts, rates: Rates) -> Iterator[Sent]:
    """What all layers send for one microbatch, but for what remat sends again to the experts."""
    yield from to_experts(config, split, rates)
    if split.context_kind == "ulysses":
        yield from _heads_for_tokens(config, split, rates)
    yield from _states(config, split, rates)


def residual_bytes(config: ModelConfig, split: Layout | Layouts, rates: Rates) -> Num:
    """The residual of one microbatch on a chip, as it lies between blocks."""
    tensor = split.sizes["tensor"] if split.sequence_parallel else 1
    elements = split.micro_batch * rates.job.seq * config.d_model
    return elements * rates.job.activation_bytes / (split.sizes["context"] * tensor)


def to_experts(config: ModelConfig, split: Layout | Layouts, rates: Rates) -> Iterator[Sent]:
    """Tokens to experts and back, forward and backward: four exchanges in a routed layer.

    Each chip sends its tokens once for each of their k experts, in buffers of equal size (k n / E
    tokens for an expert). Whole experts on chips of `tensor` are reached over both axes. Where
    `tensor` splits the experts, its chips send the tokens of their parts of the sequence, and what
    has arrived is gathered over it: k copies of a token (Megatron Core's alltoall dispatcher).
    Without sequence parallelism every chip of `tensor` sends all tokens, and nothing is gathered.
    """
    mesh, whole = split.sizes, split.expert_tensor == 1
    axes = ("tensor", "expert") if whole else ("expert",)
    of_tensor = mesh["tensor"] if split.sequence_parallel or whole else 1
    for group in config.groups:
        if not isinstance(moe := group.layer.ffn, Moe):
            continue
        width = moe.d_latent or config.d_model
        tokens = split.micro_batch * rates.job.seq * width * rates.job.activation_bytes
        tokens = tokens / mesh["context"]
        here, k = tokens / of_tensor, moe.experts_per_token
        kind, n_bytes = "all_to_all", here * k * shards(axes, mesh)
        if rates.kernels.once:
            kind, n_bytes = f"{SENT_ONCE}{k}", here
        for phase in ("forward", "backward"):
            for name, what in ((DISPATCH, "tokens to their experts"), (COMBINE, "tokens back")):
                yield Sent(
                    name=name,
                    phase=phase,
                    role="expert",
                    kind=kind,
                    axes=axes,
                    what=what if phase == "forward" else f"gradients of {what}",
                    count=group.count,
                    n_bytes=n_bytes,
                )
        if whole and not split.sequence_parallel and not moe.d_ff_shared:
            yield from _joined(group.count, tokens)
        elif not whole and split.sequence_parallel:
            ways = minimum(split.expert_tensor or mesh["tensor"], mesh["tensor"])
            count = where(mesh["expert"] > 1, group.count, 0)
            yield from _gathered(count, here * k * ways)


def _gathered(count: Num, n_bytes: Num) -> Iterator[Sent]:
    """Tokens that have arrived, for the parts of their experts on the chips of `tensor`."""
    for phase, name, kind in (
        ("forward", DISPATCH, "all_gather"),
        ("forward", COMBINE, "reduce_scatter"),
        ("backward", COMBINE, "all_gather"),
        ("backward", DISPATCH, "reduce_scatter"),
    ):
        yield Sent(
            name=name,
            phase=phase,
            role="tensor",
            kind=kind,
            axes=("tensor",),
            what="tokens of experts",
            count=count,
            n_bytes=n_bytes,
        )


def _joined(count: Num, n_bytes: Num) -> Iterator[Sent]:
    """Parts of the sequence that come back from whole experts to a residual that is not split."""
    for phase, name in (("forward", COMBINE), ("backward", DISPATCH)):
        yield Sent(
            name=name,
            phase=phase,
            role="tensor",
            kind="all_gather",
            axes=("tensor",),
            what="tokens back from experts",
            count=count,
            n_bytes=n_bytes,
        )


def sent_again(config: ModelConfig, split: Layout | Layouts, rates: Rates) -> Iterator[Sent]:
    """What goes to experts once more where their inputs are not kept. What comes back from them is
    not needed again: tokens are weighted before the last product, which nothing reads."""
    share = remat_share(config, split)
    for sent in to_experts(config, split, rates):
        if sent.name == DISPATCH and sent.phase == "forward":
            yield replace(sent, phase="remat", count=sent.count * share)


def sends_again(form: Form) -> bool:
    """Whether remat drops the tokens that experts have received (`activations_held.SENT`)."""
    return form.recomputes("gate") and form.recomputes("up")


def remat_share(config: ModelConfig, form: Form) -> float:
    """Of the layers, those that remat applies to."""
    return min(1.0, form.remat_layers / config.n_layers) if form.remat_layers else 1.0


def times_sent(transfer: Transfer, config: ModelConfig, split: Layout | Layouts) -> Num:
    """How often a collective of the algebra happens where it is one: 0 where tokens are sent to
    their experts and the residual need not be gathered for them, nor summed after them.

    A ring under full remat goes round once more: its first round leaves no keys and values behind.
    """
    ring = split.context_kind == "ring" and transfer.move.kind == "all_gather"
    if transfer.role == "context" and transfer.phase == "remat" and ring:
        return 1.0 + remat_share(config, split)
    if transfer.role != "tensor":
        return 1.0
    share = remat_share(config, split) if transfer.phase == "remat" else 1.0
    ffn = config.groups[transfer.group].layer.ffn
    base = base_name(transfer.move.before)
    if not (transfer.name.startswith("moe.") and base in RESIDUAL and isinstance(ffn, Moe)):
        return share
    if ffn.d_ff_shared and base not in NARROW:
        return share
    if split.expert_tensor == 1:
        return 0.0
    return where(split.sizes["expert"] > 1, 0.0, share) if split.sequence_parallel else share


def _heads_for_tokens(config: ModelConfig, split: Layout | Layouts, rates: Rates) -> Iterator[Sent]:
    """Ulysses: queries, keys and values leave with all their tokens and some heads, the attended
    come back: each an AllToAll, forward and backward (arXiv 2309.14509, section 3).

    Where chips are more than KV heads, every one of them receives one: heads are sent more than
    once.
    """
    tokens = split.micro_batch * rates.job.seq * rates.job.activation_bytes
    phases = ("forward", "remat", "backward") if split.full_remat else ("forward", "backward")
    chips = split.sizes["tensor"] * split.sizes["context"]
    for a, n in config.attentions:
        kv_heads = maximum(a.n_kv_heads, chips)
        widths = {
            "queries": a.n_heads * a.d_head,
            "keys": kv_heads * a.d_head,
            "values": kv_heads * a.d_head_v,
            "attended": a.n_heads * a.d_head_v,
        }
        for phase in phases:
            for what, width in widths.items():
                yield Sent(
                    name=f"attn.{what}",
                    phase=phase,
                    role="context",
                    kind="all_to_all",
                    axes=("context",),
                    what=what if phase != "backward" else f"gradients of {what}",
                    count=n * (remat_share(config, split) if phase == "remat" else 1),
                    n_bytes=tokens * width / split.sizes["tensor"],
                )


def _states(config: ModelConfig, split: Layout | Layouts, rates: Rates) -> Iterator[Sent]:
    """Scans over `context`: the state at the end of each chip's tokens, gathered by all, forward
    and backward (arXiv 2405.21060, section 8.2)."""
    mesh = split.sizes
    for m, n in config.mambas:
        held = split.micro_batch * m.d_inner * m.d_state / mesh["tensor"]
        for phase in ("forward", "backward"):
            yield Sent(
                name="mamba.states",
                phase=phase,
                role="context",
                kind="all_gather",
                axes=("context",),
                what="states of scans",
                count=n,
                n_bytes=held * mesh["context"] * rates.job.activation_bytes,
            )


def between_stages(
    config: ModelConfig, split: Layout | Layouts, stage: Stages, rates: Rates
) -> Iterator[Sent]:
    """Activations of one microbatch to the next stage, their gradients to the one before.

    Ranks that hold the same residual send a part each, and join the parts on arrival
    (arXiv 2104.04473, section 4.1; DeepSpeed's pipe_partitioned).
    """
    if split.schedule == "none":
        return
    n_bytes = residual_bytes(config, split, rates)
    parts = 1 if split.sequence_parallel else split.sizes["tensor"]
    for phase, what in (("forward", "activations"), ("backward", "gradients of activations")):
        moves = [("permute", ("pipe",), n_bytes / parts)]
        if not split.sequence_parallel:
            moves.append(("all_gather", ("tensor",), n_bytes))
        for kind, axes, of_one in moves:
            yield Sent(
                name="stage.send" if kind == "permute" else "stage.join",
                phase=phase,
                role="pipe",
                kind=kind,
                axes=axes,
                what=what,
                count=stage.passes,
                n_bytes=of_one,
            )
