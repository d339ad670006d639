"""Which computation solves which case.

A chapter's file solves a case by a function of its given numbers:

    @solves("roofline-h100-1e12", "roofline-v6e-1e12", by="T_math = FLOPs / C")
    def peak_time(g: Given) -> Answer:
        return math_s(g["flops"], g["peak_flops_per_s"])
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Given = Mapping[str, Any]
Answer = Any  # the structure of the case's `expected`

FILES = (
    "roofline",
    "tpus",
    "sharding",
    "transformers",
    "training",
    "applied_training",
    "inference",
    "applied_inference",
    "profiling_jax",
    "gpus",
    "gpu_scaling",
    "playbook",
    "papers",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """How a case is computed.

    Args:
        formula: one line in the book's notation, for display.
        compute: the case's given numbers -> the answer.
        library: False where it is plain arithmetic on the given numbers: a ratio of
            measurements, or a division that needs no formula of the library.
    """

    formula: str
    compute: Callable[[Given], Answer]
    library: bool = True


_FOUND: dict[str, Solution] = {}


def solves(
    *case_ids: str, by: str, library: bool = True
) -> Callable[[Callable[[Given], Answer]], Callable[[Given], Answer]]:
    """Register a function as the computation of some cases; `by` is its formula.

    Raises:
        ValueError: a case that another function solves already.
    """

    def register(compute: Callable[[Given], Answer]) -> Callable[[Given], Answer]:
        for case_id in case_ids:
            if case_id in _FOUND:
                raise ValueError(f"{case_id} has two computations")
            _FOUND[case_id] = Solution(formula=by, compute=compute, library=library)
        return compute

    return register


@functools.cache
def solutions() -> Mapping[str, Solution]:
    """Case id -> its computation, of all chapters."""
    for file in FILES:
        importlib.import_module(f"shardwise.book.chapters.{file}")
    return _FOUND
