"""Registry of the functions that solve the cases.

A module of `chapters` solves a case with a function of the case's given numbers:

    @solves("roofline-h100-1e12", "roofline-v6e-1e12", formula="T_math = FLOPs / C")
    def peak_time(given: Given) -> Answer:
        return math_s(given["flops"], given["peak_flops_per_s"])
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Given = Mapping[str, Any]  # the given numbers of a case, by name: `Case.given`
Answer = Any  # the answer to a case, with the structure of `Case.expected`

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
        formula: the computation in the book's notation, one line for display.
        function: function of the case's given numbers that returns the answer, which may contain
            arrays.
        uses_library: False for plain arithmetic on the given numbers, such as a ratio of
            measurements, which calls no formula of this package.
    """

    formula: str
    function: Callable[[Given], Answer]
    uses_library: bool = True

    def compute(self, given: Given) -> Answer:
        """Compute the answer, and convert arrays in it to lists."""
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
    """Decorate a function to register it as the solution of some cases.

    Args:
        formula, uses_library: as in `Solution`.

    Raises:
        ValueError: one of the cases already has a solution.
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
