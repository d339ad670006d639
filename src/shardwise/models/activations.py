"""Saved activations: the arrays that a layer's forward pass saves for its backward pass.

They are described like weights: by name, dims and shape, here of one token. Attention is assumed to
run in tiles, so that its scores are never stored. Not counted are norm statistics, softmax sums and
routing indices, which are a few numbers per token, and dropout masks, which these models lack.

Remat policies from the most to the least memory, with the elements per token and layer of
LLaMA-3-70B as multiples of D:

- "none" saves all that the backward pass reads: inputs of matmuls, norms and activation functions
  (16.8 D);
- "dots" saves the outputs of matmuls, including the attention core, and the layer input (11.3 D);
- "full" saves the layer input only and recomputes everything else (1 D).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from shardwise.arrays import Num
from shardwise.errors import UnknownName
from shardwise.models.config import Attention, Layer, Mamba, Mla, Mlp, Moe
from shardwise.models.model import ModelConfig
from shardwise.units import bytes_per_element

POLICIES = ("none", "dots", "full")


@dataclass(frozen=True, slots=True, kw_only=True)
class Activation:
    """One saved array; dims and shape are those of one token.

    Args:
        name: Name of the array.
        dims: One letter per dim; k counts the experts of a token.
        shape: One size per dim.
        policy: Of the policies that save it, the one with the least memory: "none", "dots" or
            "full".
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
    """Arrays that one layer saves under a remat policy.

    Raises:
        UnknownName: The policy is not "none", "dots" or "full".
    """
    if policy not in POLICIES:
        raise UnknownName("activation policy", policy, POLICIES)
    D = config.d_model
    arrays = [_saved("layer_input", "D", (D,), "full")]
    if layer.attention:
        arrays += _attention(D, layer.attention)
    if layer.mamba:
        arrays += _mamba(D, layer.mamba)
    if layer.has_both:
        arrays.append(_saved("middle", "D", (D,), "none"))
    if layer.ffn:
        arrays.append(_saved("ffn_input", "D", (D,), "none"))
    if isinstance(layer.ffn, Moe):
        arrays += _moe(D, layer.ffn)
    elif layer.ffn:
        arrays += _mlp(D, layer.ffn)
    policies = POLICIES[POLICIES.index(policy) :]
    absent = _absent(layer, policy)
    return tuple(a for a in arrays if a.name not in absent and a.policy in policies)


def activation_bytes(
    config: ModelConfig, tokens: Num, policy: str = "none", element: str | Num = "bf16"
) -> Num:
    """Bytes that all layers save for the backward pass of `tokens` tokens.

    This is tokens * bytes per element * the elements of `layer_activations`, over all layers. The
    activations of embeddings and logits are not counted, since they belong to no layer. Book,
    Transformers chapter, on gradient checkpointing.

    Args:
        config: The model.
        tokens: Tokens of the batch, or of one chip's share of it.
        policy: Remat policy: "none", "dots" or "full".
        element: Dtype of the arrays ("bf16", ...) or bytes per element.
    """
    elements_per_token = 0
    for group in config.groups:
        arrays = layer_activations(config, group.layer, policy)
        elements_per_token += group.count * sum(array.size for array in arrays)
    return tokens * element_bytes(element) * elements_per_token


def element_bytes(element: str | Num) -> Num:
    """Bytes per element of a dtype, which may be given as these bytes."""
    if isinstance(element, str):
        return bytes_per_element(element)
    return element


def _absent(layer: Layer, policy: str) -> set[str]:
    """Names of arrays that a layer need not save.

    They equal another array of the layer, do not exist in it, or are not read by its backward pass:
    that reads the output of a block only if a norm follows, or to recompute the sum of the first
    block's input and output.
    """
    absent = set()
    if layer.parallel:
        absent.add("middle")
    if layer.norms == "post":  # blocks read the layer input and the middle without a norm
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
    if a.mla:
        return _latent_attention(D, a, a.mla)
    N = a.n_heads
    K = a.n_kv_heads
    H = a.d_head
    return [
        _saved("attention_input", "D", (D,), "none"),
        _saved("q", "N H", (N, H), "dots"),
        _saved("k", "K H", (K, H), "dots"),
        _saved("v", "K H", (K, H), "dots"),
        _saved("attended", "N H", (N, H), "dots"),
        _saved("attention_output", "D", (D,), "dots"),
    ]


def _latent_attention(D: int, a: Attention, mla: Mla) -> list[Activation]:
    N = a.n_heads
    Q = mla.q_lora_rank
    queries = []
    if Q is not None:
        queries = [_saved("q_latent", "Q", (Q,), "dots"), _saved("q_normed", "Q", (Q,), "none")]
    return [
        _saved("attention_input", "D", (D,), "none"),
        *queries,
        _saved("q", "N H", (N, a.d_head), "dots"),
        _saved("kv_latent", "C", (mla.kv_lora_rank + mla.d_rope,), "dots"),
        _saved("kv_normed", "C", (mla.kv_lora_rank + mla.d_rope,), "none"),
        _saved("k", "N Hn", (N, mla.d_nope), "dots"),
        _saved("v", "N Hv", (N, mla.d_v), "dots"),
        _saved("attended", "N Hv", (N, mla.d_v), "dots"),
        _saved("attention_output", "D", (D,), "dots"),
    ]


def _mamba(D: int, m: Mamba) -> list[Activation]:
    """Arrays of a Mamba block whose scan is one fused kernel.

    The kernel saves its projected input and its result, and recomputes convolution, states and
    scores (state-spaces/mamba, ssd_combined.py, `save_for_backward`).
    """
    return [
        _saved("mamba_input", "D", (D,), "none"),
        _saved("projected", "F", (m.d_projected,), "dots"),
        _saved("scanned", "N H", (m.n_heads, m.d_head), "dots"),
        _saved("scan_normed", "N H", (m.n_heads, m.d_head), "none"),
        _saved("mamba_output", "D", (D,), "dots"),
    ]


def _mlp(D: int, mlp: Mlp) -> list[Activation]:
    F = mlp.d_ff
    return [
        *(_saved(name, "F", (F,), "dots") for name in mlp.up_projections),
        _saved("hidden", "F", (F,), "none"),
        _saved("ffn_output", "D", (D,), "dots"),
    ]


def _moe(D: int, moe: Moe) -> list[Activation]:
    """Arrays of a routed block. The outputs of experts are not saved.

    Routing weights are applied before the last matmul of an expert, as in Megatron Core, so that
    the backward pass does not read the output of this matmul.
    """
    k = moe.experts_per_token
    F = moe.d_ff
    arrays = [_saved("router_logits", "E", (moe.n_experts,), "dots")]
    width_letter = "D"
    width = D
    if moe.d_latent:
        width_letter = "C"
        width = moe.d_latent
        arrays.append(_saved("latent", "C", (width,), "dots"))
        arrays.append(_saved("latent_output", "C", (width,), "none"))
    arrays.append(_saved("expert_input", f"k {width_letter}", (k, width), "none"))
    arrays += [_saved(name, "k F", (k, F), "dots") for name in moe.up_projections]
    arrays.append(_saved("hidden", "k F", (k, F), "none"))
    if moe.d_ff_shared:
        shape = (moe.d_ff_shared,)
        arrays += [_saved(f"shared_{name}", "F", shape, "dots") for name in moe.up_projections]
        arrays.append(_saved("shared_hidden", "F", shape, "none"))
        arrays.append(_saved("shared_output", "D", (D,), "dots"))
    return arrays
