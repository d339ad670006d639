"""Log-probabilities as the device has computed them, and as clients get them."""

from __future__ import annotations

from shardwise.runtime.serving.sampling import LogProbabilities
from shardwise.serve.programs import Row
from shardwise.serve.request import Score


def keep_scores(row: Row, scores: LogProbabilities) -> None:
    """Keep the scores of the tokens after those of a row, as far as they are of the prompt."""
    generation = row.live.generation
    end = min(row.length + 1, len(generation.prompt))
    for position in range(row.past + 1, end):
        place = (row.place, position - row.past - 1)
        row.live.scores[position] = score_of(scores, place, generation.sampling.logprobs or 0)


def score_of(scores: LogProbabilities, place: tuple[int, ...], n_top: int) -> Score:
    """The score of one token."""
    tops = zip(scores.top_BC[place][:n_top], scores.top_logprob_BC[place][:n_top], strict=True)
    pairs = tuple((int(token), float(logprob)) for token, logprob in tops)
    return Score(float(scores.token_logprob_B[place]), pairs)
