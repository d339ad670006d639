"""Order in which the chips of `context` hold the tokens of a sequence.

Under a causal mask late tokens attend to more keys than early ones. If each of n chips held one
contiguous part of the sequence, the last chip would compute while the others wait. So a sequence is
cut into 2 n chunks, and chip i has chunk i and chunk 2 n - 1 - i. All chips then compute the same
number of scores, which is what a plan counts (the order of Llama 3, arXiv 2407.21783, section
3.3.2). With `ulysses` each chip attends over whole sequences, for some of the heads: the chips'
work is equal in any order, so their tokens stay contiguous.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from shardwise.models import ModelConfig
from shardwise.strategy.layout import Form


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextOrder:
    """Which tokens of a sequence each chip of `context` holds.

    Args:
        n: number of chips that share a sequence.
        paired: whether each chip has an early chunk and the late chunk that balances it; otherwise
            its tokens are contiguous.
    """

    n: int = 1
    paired: bool = False

    def positions(self, index: Any, n_tokens: int, numpy: Any = np) -> Any:
        """Positions in the sequence of the tokens of one chip, in the order that the chip stores.

        Args:
            index: index of the chip, from 0 to n - 1.
            n_tokens: number of tokens on the chip.
            numpy: the module `numpy`, or `jax.numpy` if `index` is a traced value.
        """
        if not self.paired:
            return index * n_tokens + numpy.arange(n_tokens)
        offsets = numpy.arange(n_tokens // 2)
        late_chunk = 2 * self.n - 1 - index
        early = index * offsets.size + offsets
        late = late_chunk * offsets.size + offsets
        return numpy.concatenate([early, late])

    def token_order(self, seq: int) -> np.ndarray[Any, Any]:
        """Positions of the `seq` tokens of a sequence: those of chip 0, then of chip 1, ..."""
        n_tokens = seq // self.n
        return np.concatenate([self.positions(index, n_tokens) for index in range(self.n)])


def context_order(config: ModelConfig, form: Form, n: int, seq: int) -> ContextOrder:
    """Choose the order of a layout's tokens.

    Chunks are paired if a causal mask makes the chips' work uneven and 2 n divides `seq`.
    """
    uneven = any(a.causal and not a.is_local(seq) for a, _ in config.attentions)
    paired = n > 1 and form.context_kind != "ulysses" and uneven and seq % (2 * n) == 0
    return ContextOrder(n=n, paired=paired)
