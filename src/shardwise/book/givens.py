"""Build chips, models, links and arrays from the given numbers of a case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from shardwise.arrays import Num
from shardwise.hardware import Chip, find_chip
from shardwise.hardware.chip import with_values
from shardwise.models import ModelConfig
from shardwise.strategy.span import Ring, Span, Tier
from shardwise.units import BYTES_PER_ELEMENT

UNIT_DIM = 1  # size of a dim that does not affect the answer
DTYPES = ("bf16", "int8", "int4", "fp32")


def column(values: Sequence[Any]) -> Num:
    """Convert a list of given numbers to an array, for which a formula gives all answers at once.

    A list of rows is transposed: the result has one array per column.
    """
    import numpy as np

    return np.array(values, dtype=float).T


def chip(name: str = "cpu", **figures: Any) -> Chip:
    """A chip of the catalog with the numbers of a case, as `peak__bf16=1e14` or `ici__link=4e10`.

    Two underscores stand for the dot in the name of a figure.
    """
    dotted = {name.replace("__", "."): value for name, value in figures.items()}
    return with_values(find_chip(name), dotted)


def torus_chip(name: str, flops_per_s: float, axis_bytes_per_s: float) -> Chip:
    """A chip with the bf16 peak and the ICI bandwidth of a case.

    `axis_bytes_per_s` is the bandwidth of one torus axis, both directions together.
    """
    return chip(name, peak__bf16=flops_per_s, ici__link=axis_bytes_per_s / 2)


def given_chip(g: Mapping[str, Any]) -> Chip:
    """The chip of a case that gives its name, its peak and the bandwidth of one torus axis."""
    return torus_chip(g["chip"], g["peak_flops_per_s"], g["ici_bidi_bytes_per_s"])


def ring(n: int, axis_bytes_per_s: float, hop_s: float = 0.0, *, closed: bool = True) -> Span:
    """The links of `n` chips on one torus axis, a ring if `closed`, else a line.

    `axis_bytes_per_s` is the bandwidth of the axis, both directions together.
    """
    return Span(rings=(Ring(0, n, 1, closed, axis_bytes_per_s / 2),), hop_s=hop_s)


def node(n: int, bytes_per_s: float, *, reduces: bool = False) -> Span:
    """The links of `n` GPUs in a node with switches, which add up AllReduces if `reduces`."""
    return Span(tiers=(Tier("node", n, bytes_per_s, reduces=reduces),))


def dense(letters: Mapping[str, int], *, tied: bool = False, gated: bool = True) -> ModelConfig:
    """A dense model from the book's letters L, D, F, N, K, H, V."""
    n_heads = letters.get("N", 1)
    return ModelConfig.dense(
        n_layers=letters.get("L", 1),
        d_model=letters["D"],
        d_ff=letters["F"],
        n_heads=n_heads,
        n_kv_heads=letters.get("K"),
        d_head=letters.get("H", letters["D"] // n_heads),
        vocab=letters.get("V", UNIT_DIM),
        tied_embeddings=tied,
        gated=gated,
    )


def dtype(element_bytes: float) -> str:
    """The name of a dtype with this many bytes per element."""
    return next(name for name in DTYPES if BYTES_PER_ELEMENT[name] == element_bytes)
