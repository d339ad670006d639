"""What a stage keeps from its forward passes until their backward passes, in elements.

One layer keeps its arrays for one microbatch; remat drops what a part of `PARTS` produces again; a
schedule says how many microbatches are in flight on a stage.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardwise import units
from shardwise.arrays import Num, maximum, minimum, where
from shardwise.estimate.training.memory.framework import Software
from shardwise.estimate.training.memory.local_elements import Local, activation_term
from shardwise.models.config import Attention, Layer
from shardwise.models.model import ModelConfig
from shardwise.ops.program import Kept, Step
from shardwise.strategy.layout import Form
from shardwise.workload import Train

# Array of a layer (models/activations.py) -> the parts that produce it. One that ran again without
# its neighbours would need what they produce, so an array is dropped when one of its parts is.
PRODUCED = {
    "attention_input": ("norms",),
    "ffn_input": ("norms",),
    "mamba_input": ("norms",),
    "projected": ("q",),  # of a Mamba block: what its scan reads
    "scanned": ("attention",),
    "scan_normed": ("activation",),  # its norm is gated
    "mamba_output": ("out",),
    "q_normed": ("norms",),
    "kv_normed": ("norms",),
    "q_latent": ("q",),
    "kv_latent": ("k",),
    "q": ("q", "mla_up"),
    "k": ("k", "mla_up"),
    "v": ("v", "mla_up"),
    "attended": ("attention",),
    "attention_output": ("out",),
    "middle": ("out",),
    "router_logits": ("gate", "up"),
    "gate": ("gate",),
    "up": ("up",),
    "shared_gate": ("gate",),
    "shared_up": ("up",),
    "hidden": ("activation",),
    "shared_hidden": ("activation",),
    "ffn_output": ("down",),
    "shared_output": ("down",),
    "latent": ("gate", "up"),  # what tokens are sent as
    "latent_output": ("down", "activation"),
}
# What eager frameworks keep beside them: the activated gate, and an output that nothing reads.
ACTIVATED = {"hidden": "activated_hidden", "shared_hidden": "activated_shared_hidden"}
UNREAD = "unread_ffn_output"
PRODUCED |= dict.fromkeys(ACTIVATED.values(), ("activation",)) | {UNREAD: ("down",)}
ALWAYS = ("layer_input",)  # remat starts from it
# Tokens as sent to their experts: sent again only where all products of the experts run again.
SENT = ("expert_input", ("gate", "up"))

# Inputs of products, which 8-bit training keeps as it multiplied them (Transformer Engine;
# DeepSeek-V3, arXiv 2412.19437 section 3.3.3).
MULTIPLIED = frozenset(
    {"attention_input", "q_normed", "kv_normed", "ffn_input", "expert_input", "hidden"}
    | {"shared_hidden", "mamba_input", "scan_normed", "latent_output"}
)

# Arrays whose gradients have no room but their own where gradients are written in place: what comes
# back to a layer, and to the input of w_down; that of gate and up is written over gate and up.
IN_PLACE_LEAVES = ("layer_input", "hidden", "shared_hidden")

# Those whose gradients live while attention is differentiated: a feed-forward's are gone by then.
OF_ATTENTION = frozenset(
    {"layer_input", "attention_input", "q_latent", "q_normed", "kv_latent", "kv_normed"}
    | {"q", "k", "v", "attended", "attention_output"}
)

# A score kept without flash attention, in 16-bit elements: softmax, dropout and its mask of one
# byte. 5 a s^2 b bytes, Korthikanti et al., arXiv 2205.05198 §4.1.
SCORE_ELEMENTS = 2.5


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerHeld:
    """Elements of one layer for one microbatch on one chip.

    Args:
        kept: From its forward pass to its backward pass.
        working: While its backward pass runs, beside what is kept: what ran again, and the
            gradients of the layer's own arrays.
    """

    kept: Num
    working: Num


def layers_held(
    config: ModelConfig,
    job: Train,
    step: Step,
    split: Form,
    local: Local,
    stage_layers: Num,
    software: Software,
) -> list[LayerHeld]:
    """For each kind of layer of the model, what one of them holds, in elements of activations.

    Layers beyond `remat_layers`, and beyond `offload_layers`, keep everything on the chip: a layer
    here is the mean of a stage.
    """
    again = _share(split.remat_layers, stage_layers)
    gone = _share(split.offload_layers, stage_layers)
    found = []
    for i, group in enumerate(config.groups):
        rows = [k for k in step.kept if k.group == i]
        terms = {k.array.name: activation_term(k, _times(k, job, split, local)) for k in rows}
        ffn = group.layer.ffn
        if not software.fused and ffn and ffn.gated:  # the activated gate, beside the product
            hidden = [k for k in rows if k.array.name in ACTIVATED]
            terms |= {ACTIVATED[k.array.name]: activation_term(k) for k in hidden}
        if not software.compiled and split.recomputed and not split.recomputes("down"):
            source = next(k for k in rows if k.array.name == "layer_input")
            terms[UNREAD] = activation_term(source)
        dropped = {name for name in terms if runs_again(split, name, group.layer)}
        offloaded = {name for name in terms if waits_outside(split, name)} - dropped
        every = local.total(terms.values())
        scores: Num = 0
        if not software.flash and group.layer.attention:
            scores = _scores(step, group.layer.attention, local)
        less = again * local.total(terms[n] for n in dropped) if dropped else 0
        if not software.flash and split.recomputes("attention"):
            less = less + again * scores
        out = gone * local.total(terms[n] for n in offloaded) if offloaded else 0
        gradients = every + scores
        if software.in_place and ffn and ffn.gated:
            gradients = local.total(terms[n] for n in IN_PLACE_LEAVES if n in terms)
        working = gradients + less + out
        if software.query_block and group.layer.attention:
            mine = {name: term for name, term in terms.items() if name in OF_ATTENTION}
            again_here = again * local.total(mine[n] for n in dropped & {*mine})
            parts = _parts_of_queries(rows, split, local, software.query_block)
            working = maximum(working, local.total(mine.values()) + again_here + parts)
        found.append(LayerHeld(kept=every + scores - less - out, working=working))
    return found


def _share(layers: int | None, stage_layers: Num) -> Num:
    """The share of a stage's layers that something applies to."""
    return 1 if layers is None else minimum(1.0, layers / stage_layers)


def _times(kept: Kept, job: Train, split: Form, local: Local) -> Num:
    """Elements for one of an array: 8-bit ones are half, tokens sent to whole experts are shared.

    Where whole experts lie on chips of `tensor`, each receives its own tokens only.
    """
    width = units.bytes_per_element(job.compute) / job.activation_bytes
    narrow = min(1.0, width) if kept.array.name in MULTIPLIED else 1.0
    if kept.array.name != SENT[0] or split.expert_tensor is None:
        return narrow
    return narrow * split.expert_tensor / local.product((("tensor", None, ()),))


def runs_again(split: Form, name: str, layer: Layer) -> bool:
    """Whether a layer under remat produces this array again.

    Attention alone (Megatron's `core_attn`) runs again for its scores: its result is the input of
    the next product, which keeps it. Where norms run again too, all between kept products does.
    """
    if name in ALWAYS:
        return False
    if name == SENT[0]:
        return all(map(split.recomputes, SENT[1]))
    if name in ("attended", "scanned") and not split.recomputes("norms"):
        return False
    parts = PRODUCED[name]
    latent = layer.attention is not None and layer.attention.mla is not None
    known = [p for p in parts if p != "mla_up" or latent]
    return any(map(split.recomputes, known))


def waits_outside(split: Form, name: str) -> bool:
    """Whether this array waits in host memory."""
    parts = () if name == UNREAD else PRODUCED.get(name, (name,))
    return any(word in split.offload for word in ("activations", *parts))


def _parts_of_queries(rows: list[Kept], split: Form, local: Local, block: int) -> Num:
    """Elements of the gradients of queries, once for each block of keys that attention takes."""
    q = next(k for k in rows if k.array.name == "q")
    keys: Num = q.sizes["S"]
    if split.context_kind == "ring":  # those of one chip at a time
        keys = local.product((("", q.sizes["S"], ("context",)),))
    return local.total([activation_term(q)]) * where(keys > block, keys // block, 0)


def _scores(step: Step, attention: Attention, local: Local) -> Num:
    """16-bit elements of the attention scores that one layer keeps without flash attention."""
    q = next(k for k in step.kept if k.array.name == "q")
    factors = tuple(
        (d.name, None, d.axes) if d.name in "BT" else ("", attention.n_heads, d.axes)
        for d in q.array.dims
        if d.name in ("B", "T", "N")
    )
    return SCORE_ELEMENTS * q.sizes["S"] * local.product(factors)
