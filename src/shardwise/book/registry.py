"""Registry of the functions that solve the cases.

A chapter's module solves a case with a function of its given numbers:

    @solves("roofline-h100-1e12", "roofline-v6e-1e12", formula="T_math = FLOPs / C")
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

CHAPTER_MODULES = (
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
        function: maps the case's given numbers to the answer, which may contain arrays.
        uses_library: False for plain arithmetic on the given numbers: a ratio of measurements,
            or a division that needs no formula of the library.
    """

    formula: str
    function: Callable[[Given], Answer]
    uses_library: bool = True

    def compute(self, given: Given) -> Answer:
        """The answer, with arrays as lists."""
        return _without_arrays(self.function(given))


def _without_arrays(answer: Answer) -> Answer:
    if hasattr(answer, "tolist"):
        return answer.tolist()
    if isinstance(answer, list | tuple):
        return [_without_arrays(value) for value in answer]
    if isinstance(answer, dict):
        return {name: _without_arrays(value) for name, value in answer.items()}
    return answer


_SOLUTIONS: dict[str, Solution] = {}


def solves(
    *case_ids: str, formula: str, uses_library: bool = True
) -> Callable[[Callable[[Given], Answer]], Callable[[Given], Answer]]:
    """Register a function as the solution of cases.

    Args:
        formula, uses_library: see `Solution`.

    Raises:
        ValueError: another function solves one of the cases.
    """

    def register(function: Callable[[Given], Answer]) -> Callable[[Given], Answer]:
        for case_id in case_ids:
            if case_id in _SOLUTIONS:
                raise ValueError(f"{case_id} has two solutions")
            _SOLUTIONS[case_id] = Solution(
                formula=formula, function=function, uses_library=uses_library
            )
        return function

    return register


@functools.cache
def solutions() -> Mapping[str, Solution]:
    """The solutions of all chapters, by case id."""
    for module in CHAPTER_MODULES:
        importlib.import_module(f"shardwise.book.chapters.{module}")
    return _SOLUTIONS
