"""Chips, models and links built from the numbers of a case."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardwise.hardware import Chip, find_chip
from shardwise.hardware.chip import with_values
from shardwise.models import ModelConfig
from shardwise.strategy.span import Ring, Span, Tier
from shardwise.units import BYTES_PER_ELEMENT

SIDE = 1  # a dim or width that cancels out of the answer


def chip(name: str = "cpu", **figures: Any) -> Chip:
    """A chip of the catalog with some figures as a case gives them: `peak__bf16=`, `ici__link=`."""
    return with_values(find_chip(name), {k.replace("__", "."): v for k, v in figures.items()})


def axis(chip_name: str, flops_per_s: float, ici_both_ways: float) -> Chip:
    """A torus chip whose peak and whose bandwidth of one axis are given."""
    return chip(chip_name, peak__bf16=flops_per_s, ici__link=ici_both_ways / 2)


def ring(n: int, both_ways: float, hop_s: float = 0.0, *, closed: bool = True) -> Span:
    """`n` chips on one torus axis with this bandwidth in both directions together."""
    return Span(rings=(Ring(0, n, 1, closed, both_ways / 2),), hop_s=hop_s)


def node(n: int, bytes_per_s: float, *, reduces: bool = False) -> Span:
    """`n` GPUs behind switches."""
    return Span(tiers=(Tier("node", n, bytes_per_s, reduces=reduces),))


def dense(letters: Mapping[str, int], *, tied: bool = False, gated: bool = True) -> ModelConfig:
    """A dense model from the book's letters L, D, F, N, K, H, V."""
    m = letters
    return ModelConfig.dense(
        n_layers=m.get("L", 1),
        d_model=m["D"],
        d_ff=m["F"],
        n_heads=m.get("N", 1),
        n_kv_heads=m.get("K"),
        d_head=m.get("H", m["D"] // m.get("N", 1)),
        vocab=m.get("V", SIDE),
        tied_embeddings=tied,
        gated=gated,
    )


def dtype(element_bytes: float) -> str:
    """A dtype of that many bytes, as the library names it."""
    named = ("bf16", "int8", "int4", "fp32")
    return next(d for d in named if BYTES_PER_ELEMENT[d] == element_bytes)
