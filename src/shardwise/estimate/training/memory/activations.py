"""Numbers of elements of the activations that layers save between forward and backward pass.

They are per layer and microbatch. Remat drops the arrays that its recomputed parts
(`strategy.layout.PARTS`) produce. The pipeline schedule determines how many microbatches are in
flight on a stage.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from shardwise import units
from shardwise.arrays import Num, maximum, minimum, where
from shardwise.estimate.kernels import backward_key_block
from shardwise.estimate.training.memory.framework import FrameworkMemory
from shardwise.estimate.training.memory.local_elements import (
    Factor,
    LocalElements,
    Term,
    activation_term,
)
from shardwise.models.config import Attention, Layer, Moe
from shardwise.models.model import ModelConfig
from shardwise.ops.program import SavedActivation, Step
from shardwise.strategy.layout import Form
from shardwise.workload import Train

CHOSEN = "k"  # dim of the experts that a token has chosen
# Array of a layer (models/activations.py) -> the parts of the layer that produce it. An array is
# dropped if any of its parts is recomputed.
PRODUCERS = {
    "attention_input": ("norms",),
    "ffn_input": ("norms",),
    "mamba_input": ("norms",),
    "projected": ("q",),  # input of a Mamba block's scan
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
    "latent": ("gate", "up"),  # in which tokens are dispatched
    "latent_output": ("down", "activation"),
}
# Additional arrays that eager frameworks save: the gate after its activation function, and the
# output of w_down, which the backward pass does not read.
ACTIVATED_GATES = {"hidden": "activated_hidden", "shared_hidden": "activated_shared_hidden"}
UNREAD = "unread_ffn_output"
PRODUCERS |= dict.fromkeys(ACTIVATED_GATES.values(), ("activation",)) | {UNREAD: ("down",)}
ALWAYS_SAVED = ("layer_input",)  # recomputation starts from it
# The array of tokens after dispatch to their experts. Remat repeats the dispatch only if it
# recomputes all the matmuls in `DISPATCH_PARTS`.
DISPATCHED = "expert_input"
DISPATCH_PARTS = ("gate", "up")

# Inputs of matmuls, which 8-bit training saves in 8 bits (Transformer Engine; DeepSeek-V3, arXiv
# 2412.19437 section 3.3.3).
MATMUL_INPUTS = frozenset(
    {"attention_input", "q_normed", "kv_normed", "ffn_input", "expert_input", "hidden"}
    | {"shared_hidden", "mamba_input", "scan_normed", "latent_output"}
)

# Arrays whose gradients need additional memory even if gradients are written in place: the layer's
# input, and the input of w_down. The gradients of gate and up overwrite gate and up.
NOT_IN_PLACE = ("layer_input", "hidden", "shared_hidden")

# Arrays whose gradients are live in the backward pass of attention, which follows that of the FFN.
ATTENTION_ARRAYS = frozenset(
    {"layer_input", "attention_input", "q_latent", "q_normed", "kv_latent", "kv_normed"}
    | {"q", "k", "v", "attended", "attention_output"}
)

# 16-bit elements saved per attention score without flash attention: the outputs of softmax and of
# dropout, and the one-byte mask of dropout, 5 bytes per score (Korthikanti et al., arXiv 2205.05198
# §4.1: 5 a s^2 b).
SCORE_ELEMENTS = 2.5


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerActivations:
    """Numbers of elements of one layer for one microbatch on one chip.

    Args:
        saved: elements saved from the layer's forward pass to its backward pass.
        working: additional elements during the layer's backward pass: recomputed arrays, arrays
            fetched from host memory, and gradients of the layer's arrays.
    """

    saved: Num
    working: Num


def layer_activations(
    config: ModelConfig,
    job: Train,
    step: Step,
    form: Form,
    local: LocalElements,
    stage_layers: Num,
    framework: FrameworkMemory,
) -> list[LayerActivations]:
    """Activations of one layer, for each kind of layer of the model.

    The result is a mean over the layers of a stage: layers beyond `remat_layers` and
    `offload_layers` save everything on the chip.

    Args:
        step: program of one microbatch on all chips.
        form: remat and offload of the layout.
        local: sizes on one chip.
        stage_layers: number of layers on the stage.
        framework: memory behavior of the framework.
    """
    remat_share = _layer_share(form.remat_layers, stage_layers)
    offload_share = _layer_share(form.offload_layers, stage_layers)
    layers = []
    for group_index, group in enumerate(config.groups):
        arrays = [activation for activation in step.saved if activation.group == group_index]
        terms = _layer_terms(arrays, group.layer, job, form, local, framework)
        dropped = {name for name in terms if is_recomputed(form, name, group.layer)}
        offloaded = {name for name in terms if is_offloaded(form, name)} - dropped
        scores: Num = 0
        if not framework.flash and group.layer.attention:
            scores = _scores(step, group.layer.attention, local)
        remat: Num = 0
        if dropped:
            remat = remat_share * local.total(terms[name] for name in dropped)
        if not framework.flash and form.recomputes("attention"):
            remat = remat + remat_share * scores
        on_host: Num = 0
        if offloaded:
            on_host = offload_share * local.total(terms[name] for name in offloaded)
        total = local.total(terms.values()) + scores
        gradients = total
        ffn = group.layer.ffn
        if framework.in_place_gradients and ffn and ffn.gated:
            gradients = local.total(terms[name] for name in NOT_IN_PLACE if name in terms)
        working = gradients + remat + on_host
        if framework.blocked_query_gradients and group.layer.attention:
            attention_terms = {name: terms[name] for name in terms if name in ATTENTION_ARRAYS}
            recomputed = [terms[name] for name in dropped & {*attention_terms}]
            attention = local.total(attention_terms.values())
            attention = attention + remat_share * local.total(recomputed)
            query_gradients = _blocked_query_gradients(arrays, form, local)
            working = maximum(working, attention + query_gradients)
        layers.append(LayerActivations(saved=total - remat - on_host, working=working))
    return layers


def _layer_terms(
    arrays: list[SavedActivation],
    layer: Layer,
    job: Train,
    form: Form,
    local: LocalElements,
    framework: FrameworkMemory,
) -> dict[str, Term]:
    """Name -> number of elements of each array that a layer saves without remat."""
    terms = {}
    for activation in arrays:
        scale = _scale(activation, job, form, local)
        is_routed = any(dim.name == CHOSEN for dim in activation.array.dims)
        if framework.padded_experts and is_routed and isinstance(layer.ffn, Moe):
            scale = scale * layer.ffn.n_experts / layer.ffn.experts_per_token
        terms[activation.array.name] = activation_term(activation, scale)
    if not framework.fused and layer.ffn and layer.ffn.gated:
        for activation in arrays:
            if activation.array.name in ACTIVATED_GATES:
                terms[ACTIVATED_GATES[activation.array.name]] = activation_term(activation)
    if not framework.compiled and form.recomputed and not form.recomputes("down"):
        layer_input = _named(arrays, "layer_input")
        terms[UNREAD] = activation_term(layer_input)
    return terms


def _named(activations: Iterable[SavedActivation], name: str) -> SavedActivation:
    """The first activation with a name."""
    return next(activation for activation in activations if activation.array.name == name)


def _layer_share(layers: int | None, stage_layers: Num) -> Num:
    """Fraction of a stage's layers to which remat or offload applies; 1 if `layers` is None."""
    return 1 if layers is None else minimum(1.0, layers / stage_layers)


def _scale(activation: SavedActivation, job: Train, form: Form, local: LocalElements) -> Num:
    """Factor on the elements of an array, to count them in elements of `job.activation_bytes`.

    An 8-bit array counts half. Tokens dispatched to chips of `tensor` with different whole experts
    are divided among these chips.
    """
    scale: Num = 1.0
    if activation.array.name in MATMUL_INPUTS:
        scale = min(1.0, units.bytes_per_element(job.compute) / job.activation_bytes)
    if activation.array.name != DISPATCHED or form.expert_tensor is None:
        return scale
    return scale * form.expert_tensor / local.product((("tensor", None, ()),))


def is_recomputed(form: Form, name: str, layer: Layer) -> bool:
    """Whether remat recomputes an array of a layer, so that it is not saved.

    Remat of attention without norms (Megatron's `core_attn`) recomputes only scores: the output of
    attention is saved as the input of the next matmul. Together with norms, the output is
    recomputed too.
    """
    if name in ALWAYS_SAVED:
        return False
    if name == DISPATCHED:
        return all(map(form.recomputes, DISPATCH_PARTS))
    if name in ("attended", "scanned") and not form.recomputes("norms"):
        return False
    has_latent = layer.attention is not None and layer.attention.mla is not None
    parts = [part for part in PRODUCERS[name] if part != "mla_up" or has_latent]
    return any(map(form.recomputes, parts))


def is_offloaded(form: Form, name: str) -> bool:
    """Whether an array of a layer is offloaded to host memory."""
    parts = () if name == UNREAD else PRODUCERS.get(name, (name,))
    return any(word in form.offload for word in ("activations", *parts))


def _blocked_query_gradients(
    arrays: list[SavedActivation], form: Form, local: LocalElements
) -> Num:
    """Number of elements of the query gradients, with one copy for each whole block of keys.

    0 if all keys are in one block.
    """
    queries = _named(arrays, "q")
    n_keys: Num = queries.sizes["S"]
    if form.context_kind == "ring":  # a ring has the keys of one chip at a time
        n_keys = local.product((("", queries.sizes["S"], ("context",)),))
    block = backward_key_block(n_keys)
    return local.total([activation_term(queries)]) * where(n_keys > block, n_keys // block, 0)


def _scores(step: Step, attention: Attention, local: LocalElements) -> Num:
    """Number of 16-bit elements saved for one layer's scores without flash attention."""
    queries = _named(step.saved, "q")
    factors: list[Factor] = []
    for dim in queries.array.dims:
        if dim.name in ("B", "T"):
            factors.append((dim.name, None, dim.axes))
        elif dim.name == "N":
            factors.append(("", attention.n_heads, dim.axes))
    return SCORE_ELEMENTS * queries.sizes["S"] * local.product(tuple(factors))
