"""What a client asks of the engine, and what the engine sends back, in tokens.

Text exists above this seam only: the server turns prompts into tokens and tokens into text, on
other threads than the engine's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

STOP = "stop"  # a stop token was sampled, or the grammar is complete
LENGTH = "length"  # `max_tokens` were generated
CANCELLED = "cancelled"
UNREACHABLE = "unreachable"  # the server that computes prompts does not answer
FAILED = "failed"  # the engine could not go on
TOO_COMPLEX = "too complex"  # the grammar of the output could not go on


class TokenMask(Protocol):
    """A grammar that restricts the next token; it has the state of one sequence."""

    def allowed(self) -> bytes:
        """Bit i of the little-endian bit string: whether token i may come next."""
        ...

    def advance(self, token: int) -> None:
        """Take the sampled token.

        Raises:
            BadInput: the grammar does not allow it, or is too complex to go on.
        """
        ...

    @property
    def complete(self) -> bool:
        """Whether nothing may follow."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How the next token is chosen from the logits.

    Order: logit bias, penalties and grammar change the logits; temperature divides them; then
    top-k, top-p and min-p each drop tokens, and one of the rest is drawn.

    Args:
        temperature: 0 for the token of the highest logit.
        top_k: number of tokens with the highest logits that are kept; 0 for all.
        top_p: the most probable tokens are kept until their probabilities sum to this.
        min_p: tokens below this share of the highest probability are dropped.
        presence_penalty: subtracted from the logit of each generated token.
        frequency_penalty: subtracted once for each time that the token was generated.
        repetition_penalty: divides positive and multiplies negative logits of all tokens of prompt
            and output.
        logit_bias: token -> what is added to its logit.
        seed: seed of the draws; equal seeds give equal outputs whatever else is in the batch. None
            for a seed that the engine chooses.
        logprobs: number of most probable tokens reported with each token, after penalties and
            before temperature; None for no log-probabilities.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    logprobs: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """A request for a continuation of one prompt.

    Args:
        id: identifies the request; unique among those that run.
        prompt: token ids, at least one.
        max_tokens: tokens to generate, at least one.
        stop_tokens: tokens that end the output; they are not sent.
        mask: grammar of the output; None for free text.
        scores_prompt: whether the first token comes with log-probabilities of the prompt's tokens,
            as `sampling.logprobs` says. Such a prompt is computed anew, and not from the cache.
        client: requests of one client take turns with those of another, whatever their number.
    """

    id: str
    prompt: tuple[int, ...]
    max_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    stop_tokens: frozenset[int] = frozenset()
    mask: TokenMask | None = None
    scores_prompt: bool = False
    client: str = ""


class Score(NamedTuple):
    """The log-probability of a token, and the most probable tokens in its place."""

    logprob: float
    top: tuple[tuple[int, float], ...]


class Token(NamedTuple):
    """A generated token, or the end of the output, or both.

    Args:
        id: the token; -1 for an end without a token.
        logprob: its log-probability, if asked for.
        top: the most probable tokens with their log-probabilities, highest first.
        finish: why the output ended: `STOP`, `LENGTH` or another of the names above; ""
            if it goes on.
        cached: tokens of the prompt that were found in the prefix cache; set with the first token.
        prompt: scores of the prompt's tokens after its first, if asked for; set as `cached`.
    """

    id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    finish: str = ""
    cached: int = 0
    prompt: tuple[Score, ...] = ()


Deliver = Callable[[Token], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineStats:
    """Counters and present state of an engine, for metrics and health.

    Args:
        healthy: whether it can generate.
        reachable: whether the prefill server answers that its prompts come from, if one does.
    """

    waiting: int
    running: int
    blocks_used: int
    blocks: int
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int
    preemptions: int
    passes: int
    finished: int
    healthy: bool
    reachable: bool = True
    drafted_tokens: int = 0
    accepted_tokens: int = 0  # of the drafted ones


class Engine(Protocol):
    """The engine as the server sees it; its methods may be called from any thread."""

    max_context: int
    vocab: int
    weights_dtype: str
    kv_dtype: str

    def submit(self, generation: Generation, deliver: Deliver) -> None:
        """Queue a request. `deliver` is called from threads of the engine and must not block; its
        last call has a `finish`.

        Raises:
            BadInput: prompt and `max_tokens` are longer than `max_context` or than the KV cache.
        """
        ...

    def cancel(self, id: str) -> None:
        """End a request early; no error if it has ended already."""
        ...

    def stats(self) -> EngineStats:
        """Counters and present state."""
        ...

    def close(self) -> None:
        """Cancel what runs, and stop the engine's thread."""
        ...
