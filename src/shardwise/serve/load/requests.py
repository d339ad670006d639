"""Requests of a load: when they are sent, and prompts of the lengths that they name."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from shardwise.errors import BadFile, BadInput
from shardwise.plan.serving.arrivals import Arrivals
from shardwise.simulate import Request, Traffic
from shardwise.simulate.traffic import constant, fixed, gamma

Item = TypeVar("Item")
Prompt = list[int] | str
Prompts = Callable[[Request], Prompt]

# Tokens of random prompts: published vocabularies have them, and special tokens are before them.
TOKENS = range(100, 1000)
# Words that are one token each in nearly every tokenizer, for servers that take no token ids.
WORDS = (
    "the", "of", "and", "to", "in", "is", "that", "for", "it", "as", "was", "with", "be", "by",
    "on", "not", "he", "his", "but", "at", "are", "this", "have", "from", "or", "had", "an",
    "they", "which", "one", "you", "were", "all", "her", "she", "there", "would", "their",
    "we", "him", "been", "has", "when", "who", "will", "no", "more", "if", "out", "so", "up",
    "said", "what", "its", "about", "than", "into", "them", "can", "only", "other", "time",
    "new", "some", "could",
)  # fmt: skip
MAX_REQUESTS = 100_000  # of one measurement
MAX_RATE = 1e5  # requests per second, far more than one client can send
MAX_USERS = 10_000  # each has a connection
MAX_TOKENS = 10_000_000  # of a request, more than models take


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What the requests of every measurement have in common.

    Args:
        arrivals: kind of arrivals, or recorded requests with their lengths.
        prompt, output: tokens of a request, unless they are recorded.
        requests: number of requests; None for `seconds`, or for all recorded requests.
        seconds: time in which requests are sent; None for no such limit.
        seed: seed of arrivals and prompts.

    Raises:
        BadInput: a prompt or an output is longer than models take.
    """

    arrivals: Arrivals
    prompt: int
    output: int
    requests: int | None
    seconds: float | None
    seed: int

    def __post_init__(self) -> None:
        for name, tokens in (("prompt", self.prompt), ("output", self.output)):
            if tokens > MAX_TOKENS:
                raise BadInput(f"{name} of {tokens:,} tokens: models take at most {MAX_TOKENS:,}.")


def open_loop(shape: Shape, rate: float | None) -> Traffic:
    """Make requests that arrive at `rate`, whatever becomes of those before them.

    The mean rate of a random sample is made exact, so that measurements are of the rate that their
    row names.

    Args:
        rate: requests per second; None for the rate of the recording.

    Raises:
        BadInput: there is neither a rate nor a recording, or there would be too many requests.
    """
    import numpy as np

    arrivals = shape.arrivals
    if rate is not None and rate > MAX_RATE:
        raise BadInput(f"rate {rate:g}/s is more than one client can send: {MAX_RATE:,.0f}/s.")
    if arrivals.trace is not None:
        traffic = arrivals.trace if rate is None else arrivals.trace.at_rate(rate)
        return _first(traffic, shape)
    if rate is None:
        raise BadInput("random arrivals need a rate.")
    n = shape.requests
    if n is None:
        n = max(1, round(rate * (shape.seconds or 0.0)))
    check_count(n)
    rng = np.random.default_rng(shape.seed)
    arrival_s = constant(n, rate)
    if arrivals.variation:
        arrival_s = gamma(n, rate, arrivals.variation, rng)
    traffic = Traffic(
        arrival_s=arrival_s, prompt=fixed(n, shape.prompt), output=fixed(n, shape.output)
    )
    return traffic.at_rate(rate)


def closed_loop(shape: Shape, users: int) -> Traffic:
    """Make requests of `users`, who each send the next one when the previous one has ended.

    Raises:
        BadInput: there would be too many requests.
    """
    if users > MAX_USERS:
        raise BadInput(f"{users:,} users are more than one client has connections: {MAX_USERS:,}.")
    recording = shape.arrivals.trace
    if recording is not None:
        return replace(_first(recording, shape), arrival_s=None, users=users)
    n = shape.requests
    if n is None:
        n = MAX_REQUESTS
    check_count(n)
    return Traffic(users=users, prompt=fixed(n, shape.prompt), output=fixed(n, shape.output))


def _first(traffic: Traffic, shape: Shape) -> Traffic:
    """The recorded requests that are sent: the first ones, or those of the first seconds."""
    import numpy as np

    n = min(shape.requests or len(traffic), len(traffic))
    if shape.seconds is not None and traffic.arrival_s is not None:
        n = min(n, int(np.searchsorted(traffic.arrival_s, shape.seconds, side="right")))
    check_count(n)
    return replace(
        traffic,
        prompt=traffic.prompt[:n],
        output=traffic.output[:n],
        arrival_s=None if traffic.arrival_s is None else traffic.arrival_s[:n],
        prefix=None if traffic.prefix is None else traffic.prefix[:n],
        shared=None if traffic.shared is None else traffic.shared[:n],
    )


def check_count(n: int) -> None:
    """Refuse a number of requests that no measurement needs.

    Raises:
        BadInput: there are more than `MAX_REQUESTS`.
    """
    if n > MAX_REQUESTS:
        raise BadInput(
            f"{n:,} requests in one measurement are more than {MAX_REQUESTS:,}. Send fewer, or for "
            "a shorter time."
        )


def random_tokens(seed: str, vocab: int | None = None) -> Prompts:
    """Prompts of random token ids; prompts that share a prefix start with the same ids.

    Args:
        vocab: number of tokens of the model; None if it is not known.
    """
    tokens = TOKENS
    if vocab is not None and vocab < TOKENS.stop:  # of bytes: special tokens are behind them
        tokens = range(vocab // 8, vocab - vocab // 8)

    def prompt(request: Request) -> Prompt:
        return _draw(tokens, request, seed)

    return prompt


def random_words(seed: str) -> Prompts:
    """Prompts of random common words, which are about as many tokens."""

    def prompt(request: Request) -> Prompt:
        return " ".join(_draw(WORDS, request, seed))

    return prompt


@dataclass(frozen=True, slots=True)
class TextLength:
    """How many tokens a piece of a text is.

    Args:
        per_token: characters; the default is of English text in common tokenizers.
        fixed: tokens of every prompt that are not of the text, such as a chat template's.
    """

    per_token: float = 4.0
    fixed: float = 0.0

    def characters(self, n_tokens: float) -> int:
        """Characters of a piece of so many tokens; at least one."""
        return max(1, round(n_tokens * self.per_token))

    @staticmethod
    def of(counts: Sequence[tuple[int, int]]) -> TextLength:
        """The length by (characters, tokens of the prompt) of pieces of two or more lengths.

        A least-squares line; the default if the counts do not grow with the characters.
        """
        import numpy as np

        characters, tokens = np.array(counts, dtype=float).T
        slope, fixed = np.polyfit(characters, tokens, 1)
        longest = float(characters.max())
        if slope * longest < 1:  # not a token more from the shortest piece to the longest
            return TextLength()
        return TextLength(1 / float(slope), max(0.0, float(fixed)))


def text_pieces(text: str, seed: str, length: TextLength) -> Prompts:
    """Pieces of a text, each from a random place, of about the tokens that a request names."""

    def piece(place: str, n_tokens: float) -> str:
        n_characters = length.characters(n_tokens)
        start = random.Random(f"{seed} {place}").randrange(len(text))
        copies = -(-(start + n_characters) // len(text))
        return (text * copies)[start : start + n_characters]

    def prompt(request: Request) -> Prompt:
        pieces = [piece(name, n_tokens) for name, n_tokens in request.prefix_texts()]
        rest = request.prompt - request.shared - length.fixed
        return "".join([*pieces, piece(f"request {request.id}", rest)])

    return prompt


def read_text(path: str) -> str:
    """Read the text that prompts are cut from.

    Raises:
        BadFile: it cannot be read, or is empty.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise BadFile(f'cannot read "{path}": {error}.') from None
    if not text.strip():
        raise BadFile(f'"{path}" has no text to cut prompts from.')
    return text


def _draw(pool: Sequence[Item], request: Request, seed: str) -> list[Item]:
    """Draw the items of a prompt; `seed` and the names of request and prefix determine them."""
    items: list[Item] = []
    for name, n_items in request.prefix_texts():
        items += random.Random(f"{seed} {name}").choices(pool, k=n_items)
    rest = request.prompt - len(items)
    return items + random.Random(f"{seed} request {request.id}").choices(pool, k=rest)
