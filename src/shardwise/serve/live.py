"""A request while the engine serves it, and how the next token of a batch of them is drawn."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shardwise.arrays import ceil_div
from shardwise.errors import BadInput
from shardwise.runtime.serving.sampling import GREEDY_BELOW, Changes, Draw
from shardwise.runtime.weights.descriptions import Tree
from shardwise.serve.request import (
    LENGTH,
    STOP,
    TOO_COMPLEX,
    Deliver,
    Generation,
    Sampling,
    Score,
    Token,
)
from shardwise.simulate.request import SequenceState

FEWEST_CHANGES = 16  # entries per row of the arrays of changed logits, which grow by doubling
ALL_BITS = 0xFFFFFFFF
DRAW_DTYPES = (np.float32, np.int32, np.float32, np.float32, np.uint32, np.int32)  # as `Draw` has


@dataclass(slots=True, weakref_slot=True, eq=False, kw_only=True)
class Live:
    """A request that waits or runs.

    Args:
        seed: seed of its draws.
        state: its state in the scheduler of the engine that runs it.
        tokens: prompt and output, as far as the host has read it.
        block_keys: keys of the full blocks of its tokens, as far as they were needed.
        slot: slot of its last token on the device; None while it waits.
        scores: scores of tokens of its prompt by position, if they are asked for.
        last: the end of the output; None while it goes on. Tokens that arrive later are dropped.
        sends_blocks: whether another engine continues it, with the blocks of its prompt.
        prompt_blocks: blocks of its prompt on the way from one engine to another.
        blocks_taken: called when these are in the cache of the other engine, or of no use.
    """

    generation: Generation
    deliver: Deliver
    seed: int
    state: SequenceState = field(init=False)
    tokens: list[int] = field(default_factory=list)
    block_keys: list[bytes] = field(default_factory=list)
    slot: int | None = None
    last: Token | None = None
    counts: Counter[int] = field(default_factory=Counter)
    scores: dict[int, Score] = field(default_factory=dict)
    sends_blocks: bool = False
    prompt_blocks: list[Tree] | None = None
    blocks_taken: Callable[[], None] | None = None

    def __post_init__(self) -> None:
        self.tokens = list(self.generation.prompt)

    @property
    def ended(self) -> bool:
        """Whether the output has ended."""
        return self.last is not None

    @property
    def n_generated(self) -> int:
        """Number of tokens of the output, as far as the host has read it."""
        return len(self.tokens) - len(self.generation.prompt)

    @property
    def n_draftable(self) -> int:
        """The most tokens that are of use as drafts for its next pass."""
        if self.has_changes or self.generation.sampling.logprobs is not None:
            return 0
        return self.generation.max_tokens - self.n_generated - 1

    @property
    def is_greedy(self) -> bool:
        """Whether each token is that of the highest logit."""
        return self.generation.sampling.temperature < GREEDY_BELOW

    @property
    def has_changes(self) -> bool:
        """Whether its logits are changed before a draw."""
        return bool(self.generation.sampling.logit_bias) or self.needs_tokens

    @property
    def needs_tokens(self) -> bool:
        """Whether a draw depends on the tokens before it, so that the host has to read them."""
        s = self.generation.sampling
        penalties = (s.presence_penalty, s.frequency_penalty, s.repetition_penalty - 1)
        return self.generation.mask is not None or any(penalties)

    def take(self, token: Token) -> None:
        """Take the next token of the output: deliver it, or end the request if it is the last."""
        generation = self.generation
        mask = generation.mask
        if mask is not None:
            try:
                mask.advance(token.id)  # one that has failed allows stop tokens, and takes none
            except BadInput:
                self.end(TOO_COMPLEX)
                return
        if token.id in generation.stop_tokens:
            self.end(STOP)
            return
        finish = ""
        if mask is not None and mask.complete:
            finish = STOP
        self.tokens.append(token.id)
        self.counts[token.id] += 1
        if self.n_generated == 1 and self.scores:
            token = token._replace(prompt=self._prompt_scores())
        if not finish and self.n_generated == generation.max_tokens:
            finish = LENGTH
        if finish:
            self.last = token._replace(finish=finish)
        else:
            self.deliver(token)

    def end(self, finish: str) -> None:
        """End the request without another token."""
        if self.last is None:
            scores = self._prompt_scores() if not self.n_generated else ()
            self.last = Token(-1, finish=finish, prompt=scores)

    def _prompt_scores(self) -> tuple[Score, ...]:
        return tuple(self.scores[i] for i in sorted(self.scores))

    def drop_prompt_blocks(self) -> None:
        """Forget the blocks of its prompt that came from another engine, if there are any."""
        if self.blocks_taken is not None:
            self.blocks_taken()
            self.blocks_taken = None
            self.prompt_blocks = None

    def deliver_last(self) -> None:
        """Deliver the end of the request, once its blocks are released."""
        if self.last is not None:
            self.deliver(self.last)


def seed_of(sampling: Sampling) -> int:
    """The seed of a request's draws."""
    seed = sampling.seed
    if seed is None:
        seed = secrets.randbits(32)
    return seed % 2**32


def draw_of(
    rows: Sequence[Live], positions: Sequence[int], places: Sequence[int], n_rows: int
) -> Draw | None:
    """How `rows`, padded to `n_rows`, draw their next tokens; None if all are greedy.

    Args:
        positions: position of each drawn token in its sequence.
        places: index of each row among the padded ones.
    """
    if all(live.is_greedy for live in rows):
        return None
    columns: list[Any] = [np.zeros(n_rows, dtype) for dtype in DRAW_DTYPES]
    for i, live, position in zip(places, rows, positions, strict=True):
        sampling = live.generation.sampling
        bounds = (sampling.temperature, sampling.top_k, sampling.top_p, sampling.min_p)
        for column, value in zip(columns, (*bounds, live.seed, position), strict=True):
            column[i] = value
    return Draw(*columns)


def changes_of(
    rows: Sequence[Live], places: Sequence[int], n_rows: int, vocab: int
) -> Changes | None:
    """How the logits of `rows`, padded to `n_rows`, are changed; None if none is.

    Args:
        places: index of each row among the padded ones.
    """
    if not any(live.has_changes for live in rows):
        return None
    by_row = [_changes(live) for live in rows]
    width = FEWEST_CHANGES
    while width < max(map(len, by_row)):
        width *= 2
    token_BR = np.full((n_rows, width), vocab, np.int32)
    bias_BR = np.zeros((n_rows, width), np.float32)
    scale_BR = np.ones((n_rows, width), np.float32)
    allowed_BW = np.full((n_rows, int(ceil_div(vocab, 32))), ALL_BITS, np.uint32)
    for i, live, changes in zip(places, rows, by_row, strict=True):
        for j, (token, (bias, scale)) in enumerate(changes.items()):
            token_BR[i, j] = token
            bias_BR[i, j] = bias
            scale_BR[i, j] = scale
        if live.generation.mask is not None:
            bits = np.frombuffer(live.generation.mask.allowed(), np.uint32)
            allowed_BW[i, : len(bits)] = bits[: allowed_BW.shape[1]]
            allowed_BW[i, len(bits) :] = 0
    return Changes(token_BR, bias_BR, scale_BR, allowed_BW)  # type: ignore[arg-type]


def _changes(live: Live) -> dict[int, tuple[float, float]]:
    """Token -> (bias, scale) of its logit."""
    s = live.generation.sampling
    changes = {token: (bias, 1.0) for token, bias in s.logit_bias.items()}
    if s.repetition_penalty != 1:
        for token in set(live.tokens):
            changes[token] = (changes.get(token, (0.0, 1.0))[0], s.repetition_penalty)
    if s.presence_penalty or s.frequency_penalty:
        for token, count in live.counts.items():
            bias, scale = changes.get(token, (0.0, 1.0))
            penalty = s.presence_penalty + s.frequency_penalty * count
            changes[token] = (bias - penalty, scale)
    return changes
