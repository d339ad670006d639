"""Small models with experts and with latent attention, and layouts of eight chips for them."""

from __future__ import annotations

from dataclasses import replace

from shardwise.models import Attention, Layer, LayerGroup, Mla, Mlp, ModelConfig, Moe
from shardwise.models.numerics import ClampedGlu, Rope, Routing
from shardwise.strategy.layout import Layout
from shardwise.strategy.mesh import Mesh
from shardwise.vocabulary import LAYER

VOCAB = 256


def _model(*layers: Layer) -> ModelConfig:
    groups = tuple(LayerGroup(layer=layer, count=2 - i) for i, layer in enumerate(layers[::-1]))
    return ModelConfig(name="small", d_model=64, vocab=VOCAB, groups=groups[::-1])


_EXPERTS = Moe(n_experts=8, experts_per_token=2, d_ff=32)
_BIASED = replace(_EXPERTS, bias=True, clamp=ClampedGlu(alpha=1.702, limit=7.0))
_GQA = Attention(n_heads=8, n_kv_heads=4, d_head=8)
MIXTRAL = _model(Layer(attention=_GQA, ffn=_EXPERTS))
GPT_OSS = _model(Layer(attention=_GQA, ffn=_BIASED))
_MLA = Attention(
    n_heads=8,
    n_kv_heads=8,
    d_head=24,
    mla=Mla(q_lora_rank=32, kv_lora_rank=16, d_nope=16, d_rope=8, d_v=12),
    rotary=Rope(interleaved=True),
)
DEEPSEEK = _model(
    Layer(attention=_MLA, ffn=Mlp(d_ff=64)),
    Layer(
        attention=_MLA,
        ffn=Moe(
            n_experts=16,
            experts_per_token=4,
            d_ff=16,
            n_shared_experts=1,
            d_ff_shared=16,
            routing=Routing(
                score="sigmoid",
                correction=True,
                n_groups=4,
                top_groups=2,
                group_best=2,
                scale=2.5,
            ),
        ),
    ),
)
MODELS = {"mixtral": MIXTRAL, "deepseek": DEEPSEEK, "gpt-oss": GPT_OSS}
SPLIT = Mesh(expert=2, tensor=4)
LAYOUTS = {
    "expert 4, zero 2, accumulated": Layout(
        mesh=Mesh(data=2, expert=4), micro_batch=1, n_microbatches=2, zero=2
    ),
    "expert 2, fsdp 4": Layout(
        mesh=Mesh(expert=2, fsdp=4), micro_batch=2, zero=3, recomputed=(LAYER,)
    ),
    "split experts": Layout(mesh=SPLIT, micro_batch=8, sequence_parallel=True),
    "whole experts, whole residual": Layout(
        mesh=SPLIT, micro_batch=8, expert_tensor=1, recomputed=(LAYER,)
    ),
    "whole experts, fsdp": Layout(
        mesh=Mesh(expert=2, tensor=2, fsdp=2),
        micro_batch=2,
        n_microbatches=2,
        zero=3,
        sequence_parallel=True,
        expert_tensor=1,
        recomputed=(LAYER,),
    ),
}


def _named(layouts: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, str]]:
    """Model and layout by the name of their run."""
    return {f"{model}: {name}": (model, name) for model, names in layouts.items() for name in names}


# Each layout under the model that asks more of it.
RUNS = _named(
    {
        "mixtral": ("expert 4, zero 2, accumulated", "whole experts, whole residual"),
        "deepseek": ("expert 2, fsdp 4", "split experts", "whole experts, fsdp"),
    }
)
# Copies of tokens that travel by count.
COUNTED = {
    "tensor": Layout(mesh=Mesh(tensor=4), micro_batch=16, sequence_parallel=True),
    **LAYOUTS,
}
COUNTED_RUNS = _named(
    {
        "gpt-oss": ("tensor", "expert 4, zero 2, accumulated"),
        "deepseek": ("split experts",),
    }
)
