"""The arrays that a layer keeps from its forward pass for its backward pass.

Per token and as descriptions, like weights. Attention is counted as computed in tiles: its scores
are never stored. Norm statistics, softmax sums and routing indices (a few numbers per token) and
dropout masks (these models have none) are left out.

Policies, from most memory to least, with LLaMA-3-70B in multiples of D per token:

- "none": all that the backward pass reads: inputs of matmuls, of norms and of activations (16.8);
- "dots": outputs of matmuls, the weighted values among them, and the layer input (11.3);
- "full": the layer input only; everything else is computed again (1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from shardwise.arrays import Num
from shardwise.errors import UnknownName
from shardwise.models.config import Attention, Layer, Mamba, Mlp, Moe
from shardwise.models.model import ModelConfig
from shardwise.units import bytes_per_element

POLICIES = ("none", "dots", "full")


@dataclass(frozen=True, slots=True, kw_only=True)
class Activation:
    """One saved array, per token.

    Args:
        name: What it is.
        dims: One letter per dim, without the batch and the length; k counts experts of a token.
        shape: One size per dim.
        policy: The least memory policy that keeps it: "none", "dots" or "full".
    """

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    policy: str

    @property
    def size(self) -> int:
        """Elements per token."""
        return math.prod(self.shape)


def layer_activations(
    config: ModelConfig, layer: Layer, policy: str = "none"
) -> tuple[Activation, ...]:
    """The arrays one layer keeps per token under a policy.

    Raises:
        UnknownName: A policy other than "none", "dots" and "full".
    """
    if policy not in POLICIES:
        raise UnknownName("activation policy", policy, POLICIES)
    D = config.d_model
    rows = [_saved("layer_input", "D", (D,), "full")]
    if layer.attention:
        rows += (_latent if layer.attention.mla else _attention)(D, layer.attention)
    if layer.mamba:
        rows += _mamba(D, layer.mamba)
    if layer.has_both:
        rows.append(_saved("middle", "D", (D,), "none"))
    if layer.ffn:
        rows.append(_saved("ffn_input", "D", (D,), "none"))
        rows += _moe(D, layer.ffn) if isinstance(layer.ffn, Moe) else _mlp(D, layer.ffn)
    keep, absent = POLICIES.index(policy), _absent(layer, policy)
    return tuple(r for r in rows if r.name not in absent and POLICIES.index(r.policy) >= keep)


def activation_bytes(
    config: ModelConfig, tokens: Num, policy: str = "none", element: str | Num = "bf16"
) -> Num:
    """Bytes that all layers keep for the backward pass of `tokens` tokens.

    tokens * bytes per element * the sum of `layer_activations` over layers. Book, Transformers
    chapter, on gradient checkpointing; the embeddings and the logits are not part of a layer.

    Args:
        config: The model.
        tokens: Tokens of the batch, or of the share of it that one chip holds.
        policy: "none", "dots" or "full".
        element: Type of the arrays ("bf16", ...) or bytes per element.

    Returns:
        Bytes.
    """
    size = bytes_per_element(element) if isinstance(element, str) else element
    per_token = sum(
        group.count * row.size
        for group in config.groups
        for row in layer_activations(config, group.layer, policy)
    )
    return tokens * size * per_token


def _absent(layer: Layer, policy: str) -> set[str]:
    """Arrays that are another one of the layer, that it does not have, or that nothing reads.

    The output of a block is added to its input: the backward pass reads it only where a norm
    follows, or where the sum between the blocks is to be computed again.
    """
    absent = {"middle"} if layer.parallel else set()
    if layer.norms == "post":  # blocks read the layer input and the middle as they are
        absent |= {"attention_input", "mamba_input", "ffn_input"}
    if layer.norms == "shared":
        absent |= {"ffn_input"}
    if layer.norms not in ("post", "both"):
        absent |= {"ffn_output", "shared_output"}
        if policy == "none" or layer.parallel or not layer.ffn:
            absent |= {"attention_output", "mamba_output"}
    return absent


def _saved(name: str, dims: str, shape: tuple[int, ...], policy: str) -> Activation:
    return Activation(name=name, dims=tuple(dims.split()), shape=shape, policy=policy)


def _attention(D: int, a: Attention) -> list[Activation]:
    N, K, H = a.n_heads, a.n_kv_heads, a.d_head
    return [
        _saved("attention_input", "D", (D,), "none"),
        _saved("q", "N H", (N, H), "dots"),
        _saved("k", "K H", (K, H), "dots"),
        _saved("v", "K H", (K, H), "dots"),
        _saved("attended", "N H", (N, H), "dots"),
        _saved("attention_output", "D", (D,), "dots"),
    ]


def _latent(D: int, a: Attention) -> list[Activation]:
    mla = a.mla
    if mla is None:
        return []
    N, Q = a.n_heads, mla.q_lora_rank
    rows = [_saved("attention_input", "D", (D,), "none")]
    if Q is not None:
        rows += [_saved("q_latent", "Q", (Q,), "dots"), _saved("q_normed", "Q", (Q,), "none")]
    return [
        *rows,
        _saved("q", "N H", (N, a.d_head), "dots"),
        _saved("kv_latent", "C", (mla.kv_lora_rank + mla.d_rope,), "dots"),
        _saved("kv_normed", "C", (mla.kv_lora_rank + mla.d_rope,), "none"),
        _saved("k", "N Hn", (N, mla.d_nope), "dots"),
        _saved("v", "N Hv", (N, mla.d_v), "dots"),
        _saved("attended", "N Hv", (N, mla.d_v), "dots"),
        _saved("attention_output", "D", (D,), "dots"),
    ]


def _mamba(D: int, m: Mamba) -> list[Activation]:
    """What the fused scan keeps: the projected input and its result; convolution, states and
    scores are computed again (state-spaces/mamba, ssd_combined.py, `save_for_backward`)."""
    return [
        _saved("mamba_input", "D", (D,), "none"),
        _saved("projected", "F", (m.d_projected,), "dots"),
        _saved("scanned", "N H", (m.n_heads, m.d_head), "dots"),
        _saved("scan_normed", "N H", (m.n_heads, m.d_head), "none"),
        _saved("mamba_output", "D", (D,), "dots"),
    ]


def _mlp(D: int, mlp: Mlp) -> list[Activation]:
    F = mlp.d_ff
    gate = [_saved("gate", "F", (F,), "dots")] if mlp.gated else []
    return [
        *gate,
        _saved("up", "F", (F,), "dots"),
        _saved("hidden", "F", (F,), "none"),
        _saved("ffn_output", "D", (D,), "dots"),
    ]


def _moe(D: int, moe: Moe) -> list[Activation]:
    """What an expert writes is not among it: the weight of a token is put on before its last
    product (Megatron Core does so too), and then nothing reads it."""
    E, k, F, shared = moe.n_experts, moe.experts_per_token, moe.d_ff, moe.d_ff_shared
    up = ("gate", "up") if moe.gated else ("up",)
    rows = [_saved("router_logits", "E", (E,), "dots")]
    letter, width = ("C", moe.d_latent) if moe.d_latent else ("D", D)
    if moe.d_latent:
        rows.append(_saved("latent", "C", (width,), "dots"))
        rows.append(_saved("latent_output", "C", (width,), "none"))
    rows.append(_saved("expert_input", f"k {letter}", (k, width), "none"))
    rows += [_saved(name, "k F", (k, F), "dots") for name in up]
    rows.append(_saved("hidden", "k F", (k, F), "none"))
    if shared:
        rows += [_saved(f"shared_{name}", "F", (shared,), "dots") for name in up]
        rows.append(_saved("shared_hidden", "F", (shared,), "none"))
        rows.append(_saved("shared_output", "D", (D,), "dots"))
    return rows
