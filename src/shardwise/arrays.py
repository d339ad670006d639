"""Elementwise operations on plain numbers or NumPy arrays.

A formula is written once. To evaluate one strategy it runs on plain numbers, without loading NumPy;
a search runs it on arrays with one element per strategy.
"""

from __future__ import annotations

import math
from typing import Any

# A plain number or a NumPy array.
Num = Any

_SCALAR = (int, float)


def maximum(a: Num, b: Num, *more: Num) -> Num:
    """Elementwise maximum."""
    if more:
        return maximum(maximum(a, b), *more)
    if isinstance(a, _SCALAR) and isinstance(b, _SCALAR):
        return a if a >= b else b
    import numpy as np

    return np.maximum(a, b)


def minimum(a: Num, b: Num) -> Num:
    """Elementwise minimum."""
    if isinstance(a, _SCALAR) and isinstance(b, _SCALAR):
        return a if a <= b else b
    import numpy as np

    return np.minimum(a, b)


def where(condition: Num, a: Num, b: Num) -> Num:
    """Elementwise `a` if `condition` else `b`."""
    if isinstance(condition, bool):
        return a if condition else b
    import numpy as np

    return np.where(condition, a, b)


def is_all(condition: Num) -> bool:
    """Whether a condition holds in every element."""
    return condition if isinstance(condition, bool) else bool(condition.all())


def ceil_div(a: Num, b: Num) -> Num:
    """Elementwise a / b rounded up: the size of the largest of b shards of a dim of size a."""
    if isinstance(a, _SCALAR) and isinstance(b, _SCALAR):
        return -(-a // b)
    import numpy as np

    return np.ceil(a / b)  # exact for whole numbers below 2^53, and faster than dividing integers


def floor(a: Num) -> Num:
    """Elementwise largest whole number that is at most `a`."""
    if isinstance(a, _SCALAR):
        return float(math.floor(a))
    import numpy as np

    return np.floor(a)


def log2(a: Num) -> Num:
    """Logarithm to base 2."""
    if isinstance(a, int | float):
        return math.log2(a)
    import numpy as np

    return np.log2(a)


def sqrt(a: Num) -> Num:
    """Elementwise square root."""
    if isinstance(a, _SCALAR):
        return math.sqrt(a)
    import numpy as np

    return np.sqrt(a)
