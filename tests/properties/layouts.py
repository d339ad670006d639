"""Hypothesis strategies: einsums with any sharding over a small mesh."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hypothesis import strategies as st

from shardwise.ops.einsum import Array, Dim, Einsum

# Shapes of products: left, right and output dims.
PRODUCTS = (
    ("IJ", "JK", "IK"),
    ("LIJ", "LJK", "LIK"),
    ("IMJ", "JK", "IMK"),
    ("IJM", "JMK", "IK"),
    ("IJ", "KJ", "KI"),
    ("J", "JK", "K"),
    ("IJ", "IJ", ""),
)


def arrays(name: str, dims: str, axes: Sequence[str], *, sums: bool = False) -> list[Array]:
    """Every layout of one array: each axis cuts a dim, or none, in every order of cutting."""
    found = []
    options: list[str | None] = [None, *dims, *(["+"] if sums else [])]
    for picks in itertools.product(options, repeat=len(axes)):
        held = {d: tuple(a for a, p in zip(axes, picks, strict=True) if p == d) for d in dims}
        partial = tuple(a for a, p in zip(axes, picks, strict=True) if p == "+")
        for cuts in itertools.product(*(itertools.permutations(held[d]) for d in dims)):
            layout = tuple(Dim(d, cut) for d, cut in zip(dims, cuts, strict=True))
            found.append(Array(name, layout, partial))
    return found


@st.composite
def einsums(draw: st.DrawFn, axes: str, *, sums: bool = True) -> Einsum:
    """An einsum of any product and sharding over these axes."""
    dims = draw(st.sampled_from(PRODUCTS))
    found = [
        draw(st.sampled_from(arrays(name, letters, axes, sums=sums and name == "C")))
        for name, letters in zip("ABC", dims, strict=True)
    ]
    return Einsum(*found)
