"""Layouts of engines that the runtime serves; `plan.serving.unserved` says why one is not served.

A search proposes no others, unless the user fixed sizes of the mesh.
"""

from __future__ import annotations

from collections.abc import Mapping

from shardwise.arrays import Num
from shardwise.models import Attention, ModelConfig, stack
from shardwise.strategy.serving_layout import ServeForm


def served(config: ModelConfig, form: ServeForm, sizes: Mapping[str, Num]) -> Num:
    """Whether the runtime serves a model on each mesh.

    Args:
        sizes: mesh role -> chips of each engine.
    """
    tensor = sizes["tensor"]
    head_counts = {kv_heads(a) for a, _ in config.attentions}
    is_served = tensor >= 1
    for n in head_counts:
        is_served = is_served & ((n % tensor == 0) | (tensor % n == 0))
    if len(head_counts) > 1:
        is_served = is_served & (tensor <= min(head_counts))
    if len(stack(config)) > 1:
        is_served = is_served & (sizes["pipe"] == 1)
    if form.weights == "2d":
        is_served = is_served & (config.d_model % (sizes["fsdp"] * sizes["tensor"]) == 0)
        for a, _ in config.attentions:
            if a.mla:
                is_served = is_served & ((a.mla.q_lora_rank or 0) % sizes["fsdp"] == 0)
                is_served = is_served & (a.mla.kv_lora_rank % sizes["fsdp"] == 0)
    if form.expert_tensor == 1:
        n_chips = sizes["expert"] * tensor
        if form.weights == "2d":
            is_served = is_served & (tensor == 1)
        for moe, _ in config.moes:
            is_served = is_served & ((tensor == 1) | (moe.n_experts % n_chips == 0))
    return is_served


def kv_heads(attention: Attention) -> int:
    """Number of KV heads in the cache of a layer; the latents of MLA are one for all heads."""
    if attention.mla:
        return 1
    return attention.n_kv_heads


def min_kv_heads(config: ModelConfig) -> int:
    """The smallest number of KV heads of any layer; the latent cache of MLA counts as one head."""
    return min((kv_heads(attention) for attention, _ in config.attentions), default=1)
