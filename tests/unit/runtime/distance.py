"""Distance of a training run from the same run on one device, and the bounds that it has to meet.

Tests and `bench/parity.py` measure with these functions. No quantity here amplifies rounding, so
the bounds hold on every processor: gradients are compared with the largest entry of their array,
and weights after an AdamW whose epsilon is above the rounding of gradients (`steps.keeping`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tests.unit.runtime.steps import Trained

Arrays = Sequence[np.ndarray[Any, Any]]

# In fp32. Losses in nats; arrays over their largest entry. Weights gather every step's rounding.
BOUNDS = {"loss": 1e-5, "gradient": 1e-5, "weight": 2e-5}


def distance(reference: Trained, run: Trained) -> dict[str, float]:
    """Distances of all losses, of the gradients of the first step and of the last weights."""
    losses = np.subtract(run.losses, reference.losses)
    return {
        "loss": float(np.abs(losses).max()),
        "gradient": relative(reference.gradients, run.gradients),
        "weight": relative(reference.weights, run.weights),
    }


def beyond(run: Mapping[str, Any]) -> dict[str, float]:
    """The distances of a run that exceed their bound, NaN included."""
    return {name: run[name] for name, bound in BOUNDS.items() if not run[name] < bound}


def relative(reference: Arrays, arrays: Arrays) -> float:
    """The largest difference of two entries over the largest entry of their array; NaN stays."""
    shares = [
        np.abs(a - b).max() / max(np.abs(a).max(), 1e-30)
        for a, b in zip(reference, arrays, strict=True)
    ]
    return float(np.max(shares))
