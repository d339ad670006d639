"""Memory traffic of element-wise steps: norms, residual sums, rotary, activations, routing."""

from __future__ import annotations

from shardwise.models import Layer, ModelConfig, Moe

# Reads plus writes of element-wise steps in the forward pass of one layer, as multiples of each
# width, counted in 16-bit elements:
# - D: two norms and two residual sums (one of each in a layer with attention or an FFN alone),
# - heads: rotary embedding of queries and keys,
# - F: activation function of the FFN,
# - conv and gated_norm: those of a Mamba block,
# - states: SSM states of a Mamba block, written in fp32 (of which the matmul already counts 16
#   bits), read, and passed on in 16 bits (state-spaces/mamba, ssd_combined.py, `states_in_fp32`).
# The backward pass has twice as many.
WIDTHS = {"D": 10.0, "heads": 2.0, "F": 3.0, "conv": 2.0, "gated_norm": 3.0, "states": 4.0}

ROUTED = "tokens"  # name of the width of tokens that are copied to experts

# Bytes of element-wise steps in the backward pass, relative to those in the forward pass.
BACKWARD_ELEMENTWISE = 2.0


def elementwise_widths(config: ModelConfig, layer: Layer) -> tuple[float, float, float]:
    """Elements that element-wise steps of one layer read and write per token in a forward pass.

    Returns:
        (elements of the residual, elements of tokens that are copied to experts, elements of widths
        that `tensor` shards).
    """
    replicated, sharded = widths(config, layer)
    routed = replicated.pop(ROUTED, 0.0)
    return sum(replicated.values(), 0.0), routed, sum(sharded.values(), 0.0)


def widths(config: ModelConfig, layer: Layer) -> tuple[dict[str, float], dict[str, float]]:
    """The elements of `elementwise_widths` by what has the width."""
    D = config.d_model
    replicated = {"D": WIDTHS["D"] * D * (1.0 if layer.has_both else 0.5)}
    sharded = {}
    if attention := layer.attention:
        n_heads = attention.n_heads + attention.n_kv_heads
        sharded["heads"] = WIDTHS["heads"] * n_heads * attention.d_head
    if mamba := layer.mamba:
        sharded["conv"] = WIDTHS["conv"] * mamba.d_scanned + WIDTHS["gated_norm"] * mamba.d_inner
        sharded["states"] = WIDTHS["states"] * mamba.d_inner * mamba.d_state / mamba.chunk
    ffn = layer.ffn
    if isinstance(ffn, Moe):
        sharded["F"] = WIDTHS["F"] * (ffn.d_ff * ffn.experts_per_token + ffn.d_ff_shared)
        # Tokens are copied to their experts, and the results are copied back and added.
        replicated[ROUTED] = 4.0 * ffn.experts_per_token * (ffn.d_latent or D)
    elif ffn:
        sharded["F"] = WIDTHS["F"] * ffn.d_ff
    return replicated, sharded
