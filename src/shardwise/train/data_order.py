"""The order of training sequences: a function of the step alone, so that any run can resume.

Sequence i of a run is computed directly, without iterating up to it: every token set is shuffled
anew in each epoch by a permutation that is evaluated per index (grain's), and sets are mixed by
weight in a fixed pattern. Row r of step s is sequence s * batch + r, whatever the layout or the
number of processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from shardwise.errors import BadInput
from shardwise.train.tokens import SequenceAttention, TokenSequence, TokenSet, open_tokens

MIN_SHARE = 1e-9  # a smaller share of all sequences never occurs in a run
N_SEEDS = 2**32  # range of seeds that grain's shuffle takes


@dataclass(frozen=True, slots=True, kw_only=True)
class DataOrder:
    """The sequences of a run.

    Args:
        dataset: a map dataset of grain: sequence by index.
        sets: the token sets that are mixed.
        batch: sequences per step.
        identity: equal for two runs that read the same sequences in the same order.
    """

    dataset: Any
    sets: tuple[TokenSet, ...]
    batch: int
    identity: dict[str, Any]

    def rows(self, step: int, rows: Sequence[int]) -> np.ndarray[Any, Any]:
        """T+1 tokens of some rows of a step's batch, [row, token]."""
        start = step * self.batch
        return np.stack([self._sequence(start + row).tokens for row in rows]).astype(np.int32)

    def origins(self, step: int) -> list[tuple[int, int]]:
        """Origin of each row of a step's batch: (token set, sequence)."""
        start = step * self.batch
        return [self._sequence(start + row).origin for row in range(self.batch)]

    def _sequence(self, index: int) -> TokenSequence:
        sequence: TokenSequence = self.dataset[index]
        return sequence


def data_order(
    sets: Sequence[TokenSet], weights: Sequence[float], *, seq: int, batch: int, seed: int
) -> DataOrder:
    """The order of sequences of a run.

    Args:
        sets: token sets to mix.
        weights: share of the sequences that comes from each token set.
        seq: tokens per sequence.
        batch: sequences per step.
        seed: of the shuffles.

    Raises:
        BadInput: a token set is shorter than one sequence, a weight is not positive, or the seed
            is out of range.
    """
    import grain.python as grain

    total = sum(weights)
    if not all(0 < MIN_SHARE * total <= weight for weight in weights):
        raise BadInput(
            f"weights {', '.join(f'{weight:g}' for weight in weights)} of --data are not shares of "
            f"a whole: each has to be above 0, and at least {MIN_SHARE:g} of their sum. Leave out "
            "sets without a share."
        )
    max_seed = N_SEEDS - len(sets)  # each set has its own seed
    if not 0 <= seed <= max_seed:
        raise BadInput(f"seed {seed} is not between 0 and {max_seed}.")
    datasets = []
    for set_index, tokens in enumerate(sets):
        source = SequenceAttention(tokens, seq, set_index)
        if not len(source):
            raise BadInput(
                f"{tokens.folder} has {tokens.n_tokens:,} tokens: not one sequence of {seq:,} and "
                "its next token."
            )
        datasets.append(grain.MapDataset.source(source).shuffle(seed=seed + set_index).repeat())
    mixed = datasets[0]
    if len(datasets) > 1:
        mixed = grain.MapDataset.mix(datasets, weights=list(weights))
    identity = {
        "sets": [tokens.identity for tokens in sets],
        "weights": [weight / total for weight in weights],
        "seq": seq,
        "batch": batch,
        "seed": seed,
    }
    return DataOrder(dataset=mixed, sets=tuple(sets), batch=batch, identity=identity)


def read_mixture(text: str) -> tuple[list[TokenSet], list[float]]:
    """Parse `code=0.7,text=0.3` into token sets and weights; a single folder needs no weight.

    Raises:
        BadFile: a folder without tokens.
        BadInput: a weight that is not a number.
    """
    sets = []
    weights = []
    for part in text.split(","):
        folder, equals, weight = part.rpartition("=")
        if not equals:
            folder = part
            weight = "1"
        try:
            weights.append(float(weight))
        except ValueError:
            raise BadInput(f'"{weight}" of --data is not a weight: write {folder}=0.5.') from None
        sets.append(open_tokens(folder.strip()))
    return sets, weights
