"""Memory traffic of element-wise steps: norms, residual sums, rotary, activations, routing."""

from __future__ import annotations

from shardwise.models import Layer, ModelConfig, Moe

# Reads and writes of element-wise steps in one layer, forward, in multiples of each width: two
# norms and two sums of D (half of them in a layer of one block), rotation of queries and keys,
# activation of F; in a Mamba block the convolution, the gated norm, and states, which are written
# in fp32 (one more than the product writes), read, and passed on in 16 bits (state-spaces/mamba,
# ssd_combined.py, `states_in_fp32`). The backward pass has twice as many.
WIDTHS = {"D": 10.0, "heads": 2.0, "F": 3.0, "conv": 2.0, "gated_norm": 3.0, "states": 4.0}


def elementwise_widths(config: ModelConfig, layer: Layer) -> tuple[float, float]:
    """Reads and writes of a token in one layer: of width D, and of widths that `tensor` layouts."""
    D = config.d_model
    along, across = WIDTHS["D"] * D * (1.0 if layer.has_both else 0.5), 0.0
    if a := layer.attention:
        across += WIDTHS["heads"] * (a.n_heads + a.n_kv_heads) * a.d_head
    if m := layer.mamba:
        across += WIDTHS["conv"] * m.d_scanned + WIDTHS["gated_norm"] * m.d_inner
        across += WIDTHS["states"] * m.d_inner * m.d_state / m.chunk
    if isinstance(ffn := layer.ffn, Moe):
        across += WIDTHS["F"] * (ffn.d_ff * ffn.experts_per_token + ffn.d_ff_shared)
        # Tokens are copied to their experts and their results back and added.
        along += 4.0 * ffn.experts_per_token * (ffn.d_latent or D)
    elif ffn:
        across += WIDTHS["F"] * ffn.d_ff
    return along, across
