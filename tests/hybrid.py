"""Hybrid models for tests: of single blocks, and of a Mamba block before each feed-forward."""

from __future__ import annotations

from shardwise.models import Attention, Layer, LayerGroup, Mamba, Mlp, ModelConfig, Moe

MAMBA = Mamba(n_heads=16, d_head=32, d_state=64, n_groups=4, d_conv=4, chunk=128)
MOE = Moe(
    n_experts=8, experts_per_token=2, d_ff=256, gated=False, n_shared_experts=1, d_ff_shared=512
)
LATENT = Moe(n_experts=8, experts_per_token=2, d_ff=256, gated=False, d_latent=64)


def hybrid(ffn: Mlp | Moe = MOE, mamba: Mamba = MAMBA) -> ModelConfig:
    """Layers of one block: four Mamba, four feed-forward, two of attention."""
    attention = Attention(n_heads=8, n_kv_heads=4, d_head=32)
    blocks = ((Layer(mamba=mamba), 4), (Layer(ffn=ffn), 4), (Layer(attention=attention), 2))
    return model(*(LayerGroup(layer=layer, count=n) for layer, n in blocks))


def paired() -> ModelConfig:
    """Layers of two blocks, the mixer a Mamba block: no attention."""
    return model(LayerGroup(layer=Layer(mamba=MAMBA, ffn=Mlp(d_ff=512)), count=4))


def model(*groups: LayerGroup) -> ModelConfig:
    """Width 256, 1024 words."""
    return ModelConfig(name="hybrid", d_model=256, vocab=1024, groups=groups)
