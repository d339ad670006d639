"""In which order chips of `context` hold the tokens of a sequence.

Under a causal mask late tokens see more keys than early ones. Cut in their order over n chips, the
last chip would work while the others wait. So a sequence is cut into 2 n chunks, and chip i has
chunk i and chunk 2 n - 1 - i: all chips have the same scores to compute, which is what a plan
counts (the order is that of Llama 3, arXiv 2407.21783, section 3.3.2). Where chips see whole
sequences for some heads (`ulysses`) every order is balanced, and tokens stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from shardwise.models import Attention, ModelConfig
from shardwise.strategy.layout import Form


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The tokens of a sequence over `n` chips of `context`.

    Args:
        n: chips.
        paired: each has an early chunk and the late one that makes up for it.
    """

    n: int = 1
    paired: bool = False

    def positions(self, index: Any, n_tokens: int, numpy: Any = np) -> Any:
        """Places in the sequence of the `n_tokens` tokens of chip `index`, in the order held.

        Args:
            numpy: NumPy, or `jax.numpy` where `index` is known on the chip only.
        """
        if not self.paired:
            return index * n_tokens + numpy.arange(n_tokens)
        half = numpy.arange(n_tokens // 2)
        late = 2 * self.n - 1 - index
        return numpy.concatenate([index * half.size + half, late * half.size + half])

    def of_sequence(self, seq: int) -> np.ndarray[Any, Any]:
        """For each place over all chips, which token of the sequence lies there."""
        each = seq // self.n
        return np.concatenate([self.positions(i, each) for i in range(self.n)])


def order_of(config: ModelConfig, form: Form, n: int, seq: int) -> Order:
    """The order of a layout: paired chunks where a causal mask asks for it and 2 n chunks divide
    the sequence."""
    uneven = any(a.causal and not narrow(a, seq) for a, _ in config.attentions)
    paired = n > 1 and form.context_kind != "ulysses" and uneven and seq % (2 * n) == 0
    return Order(n=n, paired=paired)


def narrow(attention: Attention, seq: int) -> bool:
    """Whether a window, or chunks, end before the sequence does."""
    return attention.window is not None and attention.window < seq
