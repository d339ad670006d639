"""Sizes of what is measured, by the platform of the devices: those of CPUs are in caches, too."""

from __future__ import annotations

from dataclasses import dataclass

from shardwise.models import Attention


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes of arrays; those of element-wise work are of `estimate.training.measured_rates`.

    Args:
        products: (M, I, O) of products and their gradients.
        large: multiply-adds from which a program computes a product `large_repeats` times.
        repeats: times that it computes a smaller one.
        square: dim of the product whose rate is the peak of a dtype.
        head_width: of rotary positions.
        table_rows: of embeddings.
        experts: their number, tokens of all, width in and out; None where they are not measured: on
            CPUs they are other products, of a slot for every token.
        heads: of attention.
        scores: of attention, of all heads and sequences together.
        update: shape of one of the arrays of an update.
        joined: fp32 numbers of one device's array in collectives.
        reference: dim of the product that is timed in each round.
    """

    products: tuple[tuple[int, int, int], ...]
    large: int
    large_repeats: int
    repeats: int
    square: int
    head_width: int
    table_rows: int
    experts: tuple[int, int, int, int] | None
    heads: Attention
    scores: int
    update: tuple[int, int]
    joined: tuple[int, ...]
    reference: int


CPU = Sizes(
    products=(
        (64, 384, 384),
        (512, 192, 192),
        (1024, 192, 768),
        (1024, 768, 192),
        (384, 384, 1536),
        (2048, 128, 320),
        (768, 768, 768),
        (256, 384, 3072),
        (1536, 96, 96),
    ),
    large=1 << 27,
    large_repeats=2,
    repeats=6,
    square=1024,
    head_width=64,
    table_rows=1536,
    experts=None,
    heads=Attention(n_heads=4, n_kv_heads=2, d_head=64),
    scores=1 << 20,
    update=(768, 1024),
    joined=(1 << 10, 1 << 16, 1 << 19),
    reference=256,
)
ACCELERATOR = Sizes(
    products=(
        (8192, 4096, 4096),
        (4096, 4096, 14336),
        (4096, 14336, 4096),
        (4096, 8192, 8192),
        (8192, 2048, 2048),
        (2048, 4096, 4096),
        (16384, 1024, 4096),
        (8192, 768, 2048),
        (1024, 4096, 4096),
    ),
    large=1 << 36,
    large_repeats=1,
    repeats=4,
    square=8192,
    head_width=128,
    table_rows=32768,
    experts=(32, 32768, 2048, 2048),
    heads=Attention(n_heads=16, n_kv_heads=8, d_head=128),
    scores=1 << 27,
    update=(4096, 4096),
    joined=(1 << 14, 1 << 21, 1 << 25),
    reference=4096,
)


def sizes_of(platform: str) -> Sizes:
    """Those of a platform of JAX."""
    return CPU if platform == "cpu" else ACCELERATOR
