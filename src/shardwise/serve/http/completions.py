"""`/v1/completions`: the continuation of a prompt, or of several."""

from __future__ import annotations

import time
from collections.abc import Sequence

from msgspec.structs import replace

from shardwise.serve.http.errors import bad_request
from shardwise.serve.http.output import Piece, ScoredToken
from shardwise.serve.http.prepare import Service, Wish, new_id
from shardwise.serve.http.requests import CompletionRequest
from shardwise.serve.http.responses import (
    CompletionChoice,
    CompletionResponse,
    TokenLists,
    Usage,
)
from shardwise.serve.text.vocabulary import Vocabulary

USUAL_TOKENS = 16  # OpenAI's default of `max_tokens`


def wish_of(service: Service, asked: CompletionRequest, client: str) -> Wish:
    """What a request for completions wants.

    Raises:
        ApiError: 400 if it cannot be served.
    """
    if asked.max_tokens == 0 and not asked.echo:
        raise bad_request(
            "max_tokens 0 needs echo: there would be nothing to answer.", param="max_tokens"
        )
    prompts = [_tokens(service, prompt) for prompt in _prompts(asked)]
    return Wish(
        id=new_id("cmpl"),
        prompts=prompts,
        client=client,
        max_tokens=_output_length(asked),
        logprobs=asked.logprobs,
        continues=True,
        scores_prompt=bool(asked.echo) and asked.logprobs is not None,
    )


def _output_length(asked: CompletionRequest) -> int:
    """Tokens to generate; the engine's least is one, of which a mere echo says nothing."""
    if asked.max_tokens is None:
        return USUAL_TOKENS
    return max(1, asked.max_tokens)


class CompletionAnswer:
    """The answer to a request for completions.

    Args:
        service: what is served.
        asked: the request.
        wish: what it wants.
    """

    def __init__(self, service: Service, asked: CompletionRequest, wish: Wish) -> None:
        self._vocabulary = service.texts.vocabulary
        self._model = service.texts.model
        self._id = wish.id
        self._created = int(time.time())
        self._choices = asked.n or 1
        self._logprobs = asked.logprobs
        self._only_echoes = asked.max_tokens == 0
        self._echoes: dict[int, str] = {}
        if asked.echo:
            for place, prompt in enumerate(_prompts(asked)):
                for choice in range(self._choices):
                    echo = _text(self._vocabulary, prompt)
                    self._echoes[place * self._choices + choice] = echo

    def chunks(self, index: int, piece: Piece) -> list[CompletionResponse]:
        """The events of a stream for what is new of an output."""
        text = self._echoes.pop(index, "") + self._generated(piece)
        if not (text or piece.scored or piece.finish):
            return []
        return [self._response([self._choice(index, text, piece)], None)]

    def usage(self, usage: Usage) -> CompletionResponse:
        """The last event of a stream."""
        return self._response([], self._counted(usage))

    def whole(self, pieces: Sequence[Piece], usage: Usage) -> CompletionResponse:
        """The answer in one."""
        choices = []
        for index, piece in enumerate(pieces):
            text = self._echoes.get(index, "") + self._generated(piece)
            choices.append(self._choice(index, text, piece))
        return self._response(choices, self._counted(usage))

    def _generated(self, piece: Piece) -> str:
        return "" if self._only_echoes else piece.text

    def _counted(self, usage: Usage) -> Usage:
        if not self._only_echoes:
            return usage
        return replace(usage, completion_tokens=0, total_tokens=usage.prompt_tokens)

    def _response(self, choices: list[CompletionChoice], usage: Usage | None) -> CompletionResponse:
        return CompletionResponse(
            id=self._id, created=self._created, model=self._model, choices=choices, usage=usage
        )

    def _choice(self, index: int, text: str, piece: Piece) -> CompletionChoice:
        scored = None
        if self._logprobs is not None:
            tokens = piece.scored
            if self._only_echoes:
                tokens = tokens[:-1]
            scored = _token_lists(tokens)
        finish = "length" if self._only_echoes and piece.finish else piece.finish
        return CompletionChoice(index=index, text=text, logprobs=scored, finish_reason=finish)


Prompt = str | list[int]


def _prompts(asked: CompletionRequest) -> list[Prompt]:
    """The prompts: a text or a list of tokens each."""
    if isinstance(asked.prompt, str):
        return [asked.prompt]
    prompts: list[Prompt] = []
    tokens: list[int] = []
    for prompt in asked.prompt:
        if isinstance(prompt, int):
            tokens.append(prompt)
        else:
            prompts.append(prompt)
    if tokens and prompts:
        raise bad_request(
            "prompt mixes tokens with prompts: give a text, a list of texts, a list of tokens, or "
            "a list of lists of tokens.",
            param="prompt",
        )
    if tokens:
        return [tokens]
    return prompts


def _tokens(service: Service, prompt: Prompt) -> list[int]:
    if isinstance(prompt, str):
        return service.texts.prompt(prompt)
    return prompt


def _text(vocabulary: Vocabulary, prompt: Prompt) -> str:
    if isinstance(prompt, str):
        return prompt
    return vocabulary.decode(prompt)


def _token_lists(scored: Sequence[ScoredToken]) -> TokenLists:
    lists = TokenLists(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
    for token in scored:
        name = _name(token.written)
        logprob = top = None
        if not token.is_first:
            logprob = token.logprob
            top = {_name(written): logprob for written, logprob in token.top}
            top[name] = token.logprob
        lists.tokens.append(name)
        lists.token_logprobs.append(logprob)
        lists.top_logprobs.append(top)
        lists.text_offset.append(token.offset)
    return lists


def _name(written: bytes) -> str:
    """A token as a text; parts of a character as their bytes, as OpenAI writes them."""
    try:
        return written.decode()
    except UnicodeDecodeError:
        escapes = [f"\\x{byte:02x}" for byte in written]
        return "bytes:" + "".join(escapes)
