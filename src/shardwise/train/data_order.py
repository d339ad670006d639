"""The order of training sequences, from which a run can resume at any step.

The order depends on the seed only, not on the layout or the number of processes: row r of the batch
of step s is sequence s * batch + r. Any sequence can be computed without the previous ones: a token
set is shuffled in every epoch by a permutation that grain evaluates for single indices, and several
token sets are mixed by weight in a fixed pattern.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shardwise.errors import BadInput, Problems
from shardwise.train.tokens import SequenceSource, TokenSequence, TokenSet, open_tokens

MIN_SHARE = 1e-9  # a token set with a smaller share would contribute no sequence to a run
N_SEEDS = 2**32  # grain's shuffle takes seeds from 0 to N_SEEDS - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DataOrder:
    """The training sequences of a run in their order.

    Args:
        dataset: `MapDataset` of grain: index of a sequence in the run -> `TokenSequence`.
        sets: the token sets that are mixed.
        batch: sequences per step.
        identity: content of the token sets and all settings of the order; two runs with equal
            identity read the same sequences in the same order.
    """

    dataset: Any
    sets: tuple[TokenSet, ...]
    batch: int
    identity: dict[str, Any]

    def rows(self, step: int, rows: Sequence[int]) -> np.ndarray[Any, Any]:
        """Return rows of the batch of a step, each with T+1 tokens: int32[row, token]."""
        start = step * self.batch
        return np.stack([self._sequence(start + row).tokens for row in rows]).astype(np.int32)

    def origins(self, step: int) -> list[tuple[int, int]]:
        """Return the origin of each row of the batch of a step: (token set, sequence index)."""
        start = step * self.batch
        return [self._sequence(start + row).origin for row in range(self.batch)]

    def _sequence(self, index: int) -> TokenSequence:
        sequence: TokenSequence = self.dataset[index]
        return sequence


def data_order(
    sets: Sequence[TokenSet], weights: Sequence[float], *, seq: int, batch: int, seed: int
) -> DataOrder:
    """Shuffle and mix the sequences of token sets.

    Args:
        sets: token sets to mix.
        weights: shares of the sequences that come from each token set; need not sum to 1.
        seq: tokens per sequence.
        batch: sequences per step.
        seed: seed of the shuffles.

    Raises:
        BadInput: a token set is shorter than one sequence, a weight is not positive or almost 0, or
            the seed is out of range.
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
        source = SequenceSource(tokens, seq, set_index)
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
    """Open the token sets of `code=0.7,text=0.3`; return them and their weights.

    A folder without a weight has weight 1.

    Raises:
        BadFile: a folder has no tokens.
        BadInput: a weight is not a number.
    """
    problems = Problems()
    sets = []
    weights = []
    for part in text.split(","):
        folder, weight = _folder_and_weight(part)
        try:
            weights.append(float(weight or 1))
        except ValueError:
            problems.refuse(f'"{weight}" of --data is not a weight: write {folder}=0.5.')
        sets.append(problems.read(open_tokens, folder))
    problems.done()
    return sets, weights


def absolute_mixture(text: str) -> str:
    """Return `code=0.7,text=0.3` with absolute paths, to find the folders from anywhere."""
    parts = []
    for part in text.split(","):
        folder, weight = _folder_and_weight(part)
        parts.append(f"{Path(folder).absolute()}={weight or 1}")
    return ",".join(parts)


def _folder_and_weight(part: str) -> tuple[str, str]:
    """Split `code=0.7` at its last `=`; the weight is empty without one."""
    folder, equals, weight = part.rpartition("=")
    if not equals:
        return part.strip(), ""
    return folder.strip(), weight.strip()
