"""Which sequences a step trains on: a function of the step alone, so a run continues anywhere.

Sequence i of the run is looked up, not iterated to: each token set is shuffled anew in every epoch
by a permutation that is computed per index (grain's), and sets are mixed by weights in a fixed
pattern. Row r of step s is sequence s * batch + r, whatever the layout or the number of processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardwise.errors import BadInput
from shardwise.train.tokens import Drawn, Sequences, TokenSet, open_tokens

LEAST_SHARE = 1e-9  # less than this of all sequences is none in any run
SEEDS = 2**32  # of grain's shuffles


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The sequences of a run.

    Args:
        drawn: sequence by number: a map dataset of grain.
        batch: sequences of a step.
        identity: what says whether two runs read the same in the same order.
    """

    drawn: Any
    sets: tuple[TokenSet, ...]
    batch: int
    identity: dict[str, Any]

    def rows(self, step: int, rows: Sequence[int]) -> np.ndarray[Any, Any]:
        """T+1 tokens of some rows of a step's batch, [row, token]."""
        start = step * self.batch
        return np.stack([self._at(start + row).tokens for row in rows]).astype(np.int32)

    def origins(self, step: int) -> list[tuple[int, int]]:
        """Where each row of a step's batch comes from: (token set, sequence)."""
        start = step * self.batch
        return [self._at(start + row).origin for row in range(self.batch)]

    def _at(self, index: int) -> Drawn:
        found: Drawn = self.drawn[index]
        return found


def order(
    sets: Sequence[TokenSet], weights: Sequence[float], *, seq: int, batch: int, seed: int
) -> Order:
    """The order of sequences of a run.

    Args:
        weights: share of the sequences that each token set gives.
        seq: tokens of a sequence.
        batch: sequences of a step.

    Raises:
        BadInput: a token set has not one sequence of that length; a weight is not above 0; a seed
            that there is not.
    """
    import grain.python as grain

    total = sum(weights)
    if not all(0 < LEAST_SHARE * total <= w for w in weights):
        raise BadInput(
            f"weights {', '.join(f'{w:g}' for w in weights)} of --data are no shares of a whole: "
            f"each is above 0, and {LEAST_SHARE:g} of their sum or more. Leave out what has none."
        )
    last = SEEDS - len(sets)  # each set has its own
    if not 0 <= seed <= last:
        raise BadInput(f"seed {seed} is not between 0 and {last}.")
    parts = []
    for which, tokens in enumerate(sets):
        source = Sequences(tokens, seq, which)
        if not len(source):
            raise BadInput(
                f"{tokens.folder} has {tokens.n_tokens:,} tokens: not one sequence of {seq:,} and "
                "its next token."
            )
        parts.append(grain.MapDataset.source(source).shuffle(seed=seed + which).repeat())
    mixed = parts[0] if len(parts) == 1 else grain.MapDataset.mix(parts, weights=list(weights))
    identity = {
        "sets": [s.identity for s in sets],
        "weights": [w / total for w in weights],
        "seq": seq,
        "batch": batch,
        "seed": seed,
    }
    return Order(drawn=mixed, sets=tuple(sets), batch=batch, identity=identity)


def read_mixture(text: str) -> tuple[list[TokenSet], list[float]]:
    """`code=0.7,text=0.3` -> token sets with their weights; one folder alone needs none.

    Raises:
        BadFile: a folder without tokens.
        BadInput: a weight that is none.
    """
    sets, weights = [], []
    for part in text.split(","):
        folder, equals, weight = part.rpartition("=")
        try:
            weights.append(float(weight) if equals else 1.0)
        except ValueError:
            raise BadInput(f'"{weight}" of --data is no weight: write {folder}=0.5.') from None
        sets.append(open_tokens((folder if equals else weight).strip()))
    return sets, weights
