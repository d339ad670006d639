"""The text of one output as it grows, with calls of tools and log-probabilities."""

from __future__ import annotations

from codecs import getincrementaldecoder
from collections.abc import Sequence
from dataclasses import dataclass, field

from shardwise.serve.http.errors import bad_request, failed, unavailable
from shardwise.serve.http.prepare import Output
from shardwise.serve.http.responses import Finish
from shardwise.serve.request import (
    CANCELLED,
    FAILED,
    LENGTH,
    TOO_COMPLEX,
    UNREACHABLE,
    Score,
    Token,
)
from shardwise.serve.text.detokenize import Detokenizer, StopStrings
from shardwise.serve.text.tools import Part, ToolCall
from shardwise.serve.text.vocabulary import Vocabulary

LOWEST = -9999.0  # written for a log-probability of minus infinity, which JSON lacks


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredToken:
    """A token with its log-probability.

    Args:
        written: bytes that it adds to the text.
        logprob: its log-probability.
        offset: characters of the output before it.
        top: bytes and log-probabilities of the most probable tokens in its place.
        is_first: whether it is the first token of a prompt, which has no log-probability.
    """

    written: bytes
    logprob: float
    offset: int
    top: tuple[tuple[bytes, float], ...]
    is_first: bool = False


@dataclass(slots=True, kw_only=True)
class Piece:
    """What is new of an output.

    Args:
        parts: text and calls, in their order.
        scored: tokens, if log-probabilities are asked for; those of the prompt, too, if echoed.
        finish: why the output ended; None if it goes on.
    """

    parts: list[Part] = field(default_factory=list)
    scored: list[ScoredToken] = field(default_factory=list)
    finish: Finish | None = None

    def add(self, other: Piece) -> None:
        """Append what is new after this."""
        self.parts += other.parts
        self.scored += other.scored
        self.finish = other.finish or self.finish

    @property
    def text(self) -> str:
        """The text without calls."""
        texts = [part for part in self.parts if isinstance(part, str)]
        return "".join(texts)

    @property
    def calls(self) -> list[ToolCall]:
        """The calls."""
        return [part for part in self.parts if isinstance(part, ToolCall)]


class GrowingText:
    """The text of one output.

    Args:
        output: what is asked for.
        vocabulary: of the model.
    """

    def __init__(self, output: Output, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._prompt = output.generation.prompt
        self._detokenizer = Detokenizer(vocabulary, output.context, special=output.special)
        self._stops = StopStrings(output.stops, include=output.include_stop)
        self._parser = output.parser()
        self._characters = 0
        self._called = False
        self.tokens = 0
        self.cached = 0
        self.finish: Finish | None = None

    def push(self, token: Token) -> Piece:
        """Take a token, or the end of the output.

        Raises:
            ApiError: the engine did not finish the output.
        """
        if self.finish:  # by a stop string; the engine learned of it later
            return Piece()
        piece = Piece()
        self.cached = max(self.cached, token.cached)
        if token.prompt:
            piece.scored += self._scored_prompt(token.prompt)
        if token.id >= 0:
            self.tokens += 1
            text = self._detokenizer.push(token.id)
            if token.logprob is not None:
                piece.scored.append(self._scored(token, token.logprob))
            self._characters += len(text)
            self._read(self._stops.push(text), piece)
        if not self._stops.stopped:
            self._check(token)
            if token.finish:
                self._read(self._stops.push(self._detokenizer.finish()), piece)
                self._read(self._stops.finish(), piece)
        if self._stops.stopped or token.finish:
            self._add(self._parser.finish(), piece)
            self.finish = piece.finish = self._why(token)
        return piece

    def _read(self, text: str, piece: Piece) -> None:
        if text:
            self._add(self._parser.push(text), piece)

    def _add(self, parts: list[Part], piece: Piece) -> None:
        piece.parts += parts
        if piece.calls:
            self._called = True

    def _check(self, token: Token) -> None:
        if token.finish == CANCELLED:
            raise unavailable("the server is shutting down.", code="draining")
        if token.finish == UNREACHABLE:
            raise unavailable("the prefill server does not answer.", code="prefill_unreachable")
        if token.finish == FAILED:
            raise failed("the engine could not go on; the server's log says why.")
        if token.finish == TOO_COMPLEX:
            raise bad_request(
                "the structure of the output is too complex to follow: simplify the schema or the "
                "regular expression.",
                code="structure_too_complex",
            )

    def _why(self, token: Token) -> Finish:
        if token.finish == LENGTH and not self._stops.stopped:
            return "length"
        if self._called:
            return "tool_calls"
        return "stop"

    def _scored_prompt(self, scores: Sequence[Score]) -> list[ScoredToken]:
        """The tokens of the prompt, of which the first follows nothing."""
        decoder = getincrementaldecoder("utf-8")("replace")
        first = self._vocabulary.bytes_of(self._prompt[0])
        tokens = [ScoredToken(written=first, logprob=0, offset=0, top=(), is_first=True)]
        self._characters = len(decoder.decode(first))
        for id, score in zip(self._prompt[1:], scores, strict=True):
            tokens.append(self._scored(Token(id, *score), score.logprob))
            self._characters += len(decoder.decode(tokens[-1].written))
        return tokens

    def _scored(self, token: Token, logprob: float) -> ScoredToken:
        top = []
        for other, value in token.top:
            top.append((self._vocabulary.bytes_of(other), max(value, LOWEST)))
        return ScoredToken(
            written=self._vocabulary.bytes_of(token.id),
            logprob=max(logprob, LOWEST),
            offset=self._characters,
            top=tuple(top),
        )
