"""The next token of each sequence, drawn from its logits.

Letters of arrays: B sequences, V vocabulary, R tokens whose logits a request changes, C tokens that
are reported with their log-probabilities, K drafted tokens, T = 1 + K.

Thresholds of top-k and top-p are found by bisection on the numbers' bits, because a sort of the
vocabulary would take longer than the rest of a decode step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

Array = jax.Array

FLOAT_BITS = 31  # of a number that is not negative
GREEDY_BELOW = 1e-5  # temperature
LOWEST = -1e30  # logit of a token that must not be drawn


class Draw(NamedTuple):
    """How each sequence draws its next token; see `serve.request.Sampling`.

    Args:
        temperature_B: 0 for the highest logit.
        top_k_B: 0 for all tokens.
        top_p_B: 1 for all tokens.
        min_p_B: 0 for all tokens.
        seed_B: seed of the sequence.
        position_B: position of the token in the sequence, which makes a new draw of the seed.
    """

    temperature_B: Array
    top_k_B: Array
    top_p_B: Array
    min_p_B: Array
    seed_B: Array
    position_B: Array


class Changes(NamedTuple):
    """Changes of logits by bias, penalties and grammars.

    Args:
        token_BR: tokens of which a logit changes; V for an unused entry.
        bias_BR: what is added to the logit.
        scale_BR: divides a positive logit and multiplies a negative one, before the bias.
        allowed_BW: bits of tokens that a grammar allows, in words of 32; all ones without a
            grammar.
    """

    token_BR: Array
    bias_BR: Array
    scale_BR: Array
    allowed_BW: Array


class LogProbabilities(NamedTuple):
    """Log-probabilities at temperature 1, after changes.

    Args:
        token_logprob_B: those of the drawn tokens.
        top_BC: the most probable tokens, highest first.
        top_logprob_BC: their log-probabilities.
    """

    token_logprob_B: Array
    top_BC: Array
    top_logprob_BC: Array


class Drawn(NamedTuple):
    """The next tokens, with log-probabilities if they were asked for."""

    token_B: Array
    log_probabilities: LogProbabilities | None = None


class Verified(NamedTuple):
    """The tokens that a pass over drafted tokens has drawn.

    Args:
        first: those after each sequence's last token.
        next_BK: those after each drafted token.
        accepted_B: number of drafted tokens that equal the drawn ones, up to the first that does
            not; a sequence gains its `first` and as many of `next_BK`.
    """

    first: Drawn
    next_BK: Array
    accepted_B: Array


def draw(
    logits_BV: Array,
    draw: Draw | None = None,
    changes: Changes | None = None,
    n_top: int | None = None,
) -> Drawn:
    """Draw the next token of each sequence.

    Args:
        logits_BV: logits in fp32.
        draw: None if every sequence takes its highest logit.
        changes: None if no logit changes.
        n_top: number of most probable tokens to report; None for no log-probabilities.
    """
    if changes is not None:
        logits_BV = _change(logits_BV, changes)
    token_B = _highest(logits_BV)
    if draw is not None:
        is_greedy_B = draw.temperature_B < GREEDY_BELOW
        token_B = jnp.where(is_greedy_B, token_B, _draw(logits_BV, draw))
    if n_top is None:
        return Drawn(token_B)
    logprob_BV = jax.nn.log_softmax(logits_BV, axis=-1)
    logprob_B = jnp.take_along_axis(logprob_BV, token_B[:, None], axis=-1)[:, 0]
    top_logprob_BC, top_BC = lax.top_k(logprob_BV, min(max(1, n_top), logits_BV.shape[-1]))
    return Drawn(token_B, LogProbabilities(logprob_B, top_BC, top_logprob_BC))


def score(
    logits_BTV: Array, next_BT: Array, last_B: Array, n_top: int
) -> tuple[Array, LogProbabilities]:
    """Score the tokens of prompts; return (logits_BV after the last ones, log-probabilities [B,T]).

    Args:
        logits_BTV: logits in fp32 after each token.
        next_BT: the token after it in the prompt.
        last_B: index of the last token; what follows is padding.
        n_top: number of most probable tokens to report.
    """
    logits_BV = jnp.take_along_axis(logits_BTV, last_B[:, None, None], axis=1)[:, 0]
    logprob_BTV = jax.nn.log_softmax(logits_BTV, axis=-1)
    next_BT1 = next_BT[..., None]
    logprob_BT = jnp.take_along_axis(logprob_BTV, next_BT1, axis=-1)[..., 0]
    top_logprob_BTC, top_BTC = lax.top_k(logprob_BTV, max(1, n_top))
    return logits_BV, LogProbabilities(logprob_BT, top_BTC, top_logprob_BTC)


def verify(
    logits_BTV: Array,
    drafted_BK: Array,
    n_drafted_B: Array,
    how: Draw | None = None,
    changes: Changes | None = None,
    n_top: int | None = None,
) -> Verified:
    """Draw the token after each sequence's last token and after each of its drafted tokens.

    A drafted token is accepted if it is the token that is drawn in its place. Every token that is
    kept is therefore the one that `draw` would have drawn without drafts, for the same seed: the
    outputs are equal token by token, greedy or not, except for the rounding of logits in programs
    of different shapes. If drafts are certain, as those of n-grams, a drafted token is accepted as
    often as by rejection sampling (arXiv 2211.17192), with its probability. Drafts that `draw` has
    drawn from other logits have the same noise here: tokens of two distributions at a total
    variation distance of D agree with a probability of at least (1-D)/(1+D), where rejection
    sampling accepts 1-D (arXiv 2408.07978), but its outputs would depend on the drafts.

    Args:
        logits_BTV: logits in fp32 of the last token and the drafted tokens.
        drafted_BK: drafted tokens.
        n_drafted_B: number of drafted tokens of each sequence; the others are padding.
        how: as `draw` has it, for `first`.
        changes: of the logits of `first`; a sequence with changes must have no drafted tokens.
        n_top: as `draw` has it, for `first`.
    """
    B, K = drafted_BK.shape
    first = draw(logits_BTV[:, 0], how, changes, n_top)
    if how is not None:
        how = Draw(*(jnp.repeat(x, K) for x in how))
        how = how._replace(position_B=how.position_B + jnp.tile(jnp.arange(1, K + 1), B))
    next_BK = draw(logits_BTV[:, 1:].reshape(B * K, -1), how).token_B.reshape(B, K)
    drawn_BK = jnp.concatenate([first.token_B[:, None], next_BK[:, :-1]], axis=1)
    is_accepted_BK = (drafted_BK == drawn_BK) & (jnp.arange(K) < n_drafted_B[:, None])
    accepted_B = jnp.cumprod(is_accepted_BK.astype(jnp.int32), axis=1).sum(axis=1)
    return Verified(first, next_BK, accepted_B)


def _change(logits_BV: Array, changes: Changes) -> Array:
    """Apply penalties and bias to some logits, then a grammar's mask to all."""
    old_BR = jnp.take_along_axis(logits_BV, changes.token_BR, axis=-1, mode="clip")
    scaled_BR = jnp.where(old_BR > 0, old_BR / changes.scale_BR, old_BR * changes.scale_BR)
    rows_B1 = jnp.arange(logits_BV.shape[0])[:, None]
    new_BR = scaled_BR + changes.bias_BR
    logits_BV = logits_BV.at[rows_B1, changes.token_BR].set(new_BR, mode="drop")
    V = logits_BV.shape[-1]
    token_V = jnp.arange(V)
    word_BV = changes.allowed_BW[:, token_V // 32]
    is_allowed_BV = (word_BV >> (token_V % 32).astype(jnp.uint32)) & 1
    return jnp.where(is_allowed_BV == 1, logits_BV, LOWEST)


def _draw(logits_BV: Array, draw: Draw) -> Array:
    """Draw tokens at each sequence's temperature, from those that its bounds keep."""
    temperature_B1 = jnp.maximum(draw.temperature_B, GREEDY_BELOW)[:, None]
    scores_BV = logits_BV / temperature_B1
    scores_BV = scores_BV - scores_BV.max(axis=-1, keepdims=True)
    p_BV = jnp.exp(scores_BV)  # over the highest probability
    p_BV = jnp.where(p_BV >= _top_k_bound(p_BV, draw.top_k_B)[:, None], p_BV, 0.0)
    bound_B = jnp.maximum(_top_p_bound(p_BV, draw.top_p_B), draw.min_p_B)
    is_kept_BV = (p_BV >= bound_B[:, None]) & (p_BV > 0)
    noise_BV = jax.vmap(_noise, in_axes=(0, 0, None))(
        draw.seed_B, draw.position_B, logits_BV.shape[-1]
    )
    # The highest sum of log-probability and Gumbel noise is a draw from the distribution.
    drawn_BV = jnp.where(is_kept_BV, scores_BV + noise_BV, -jnp.inf)
    return _highest(drawn_BV)


def _highest(x_BV: Array) -> Array:
    """Index of the highest number of each row, the first of equal ones.

    The loop of `jnp.argmax` is neither vectorized nor parallel on CPUs: 4 ms for 16 rows of a
    vocabulary of 49k, against 0.6 ms.
    """
    last = x_BV.shape[-1] - 1
    is_highest_BV = x_BV == x_BV.max(axis=-1, keepdims=True)
    index_V = jnp.arange(last + 1, dtype=jnp.int32)
    return jnp.where(is_highest_BV, index_V, last).min(axis=-1)


def _noise(seed: Array, position: Array, n: int) -> Array:
    """Gumbel noise of one sequence at one position; it depends on nothing else in the batch."""
    key = jax.random.fold_in(jax.random.key(seed), position)
    noise: Array = jax.random.gumbel(key, (n,), jnp.float32)
    return noise


def _top_k_bound(p_BV: Array, top_k_B: Array) -> Array:
    """The k-th highest number of each row; 0 for k = 0."""
    is_bounded_B = top_k_B > 0
    wanted_B = jnp.where(is_bounded_B, top_k_B, p_BV.shape[-1] + 1)

    def has_enough(bound_B: Array) -> Array:
        return (p_BV >= bound_B[:, None]).sum(axis=-1) >= wanted_B

    return _highest_bound(has_enough, is_bounded_B)


def _top_p_bound(p_BV: Array, top_p_B: Array) -> Array:
    """The highest bound such that the numbers from it on sum to `top_p` of all; 0 for 1."""
    is_bounded_B = top_p_B < 1
    wanted_B = jnp.where(is_bounded_B, top_p_B * p_BV.sum(axis=-1), jnp.inf)

    def has_enough(bound_B: Array) -> Array:
        return jnp.where(p_BV >= bound_B[:, None], p_BV, 0.0).sum(axis=-1) >= wanted_B

    return _highest_bound(has_enough, is_bounded_B)


def _highest_bound(has_enough: Callable[[Array], Array], is_bounded_B: Array) -> Array:
    """The highest number of [0, 1] for which `has_enough` holds in each row; 0 if none does.

    The bits of floats that are not negative have the order of the floats.

    Args:
        is_bounded_B: whether a row has such numbers; if none has, nothing is searched.
    """

    def step(i: Array, bits_B: Array) -> Array:
        trial_B = bits_B | (1 << (FLOAT_BITS - 1 - i))
        bound_B = lax.bitcast_convert_type(trial_B, jnp.float32)
        is_number_B = bound_B <= 1.0  # neither above all numbers nor NaN
        return jnp.where(is_number_B & has_enough(bound_B), trial_B, bits_B)

    n_steps = jnp.where(is_bounded_B.any(), FLOAT_BITS, 0)
    bits_B = lax.fori_loop(0, n_steps, step, jnp.zeros(is_bounded_B.shape[0], jnp.int32))
    return lax.bitcast_convert_type(bits_B, jnp.float32)
