"""`/v1/chat/completions`: the answer to a conversation."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from shardwise.errors import BadInput
from shardwise.serve.http.errors import bad_request
from shardwise.serve.http.output import Piece, ScoredToken
from shardwise.serve.http.prepare import Service, Wish, new_id
from shardwise.serve.http.requests import ChatRequest, Message, Tool, ToolChoice
from shardwise.serve.http.responses import (
    AnswerMessage,
    ChatChoice,
    ChatChunk,
    ChatLogprobs,
    ChatResponse,
    ChunkChoice,
    Delta,
    FunctionCalled,
    TokenLogprob,
    ToolCallChunk,
    ToolCalled,
    TopLogprob,
    Usage,
)
from shardwise.serve.text.structure import GrammarSpec
from shardwise.serve.text.tools import (
    CallsInText,
    Parser,
    PlainText,
    RequiredCalls,
    ToolCall,
    required_calls,
)


def wish_of(service: Service, asked: ChatRequest, client: str) -> Wish:
    """What a conversation wants.

    Raises:
        ApiError: 400 if it cannot be served.
    """
    structure, parser = _calls(asked)
    logprobs = None
    if asked.logprobs:
        logprobs = asked.top_logprobs or 0
    elif asked.top_logprobs is not None:
        raise bad_request('top_logprobs needs "logprobs": true.', param="top_logprobs")
    return Wish(
        id=new_id("chatcmpl"),
        prompts=[service.texts.vocabulary.encode(_prompt(service, asked))],
        client=client,
        max_tokens=asked.max_completion_tokens or asked.max_tokens,
        logprobs=logprobs,
        structure=structure,
        parser=parser,
    )


class ChatAnswer:
    """The answer to a conversation.

    Args:
        service: what is served.
        asked: the request.
        wish: what it wants.
    """

    def __init__(self, service: Service, asked: ChatRequest, wish: Wish) -> None:
        self._model = service.texts.model
        self._id = wish.id
        self._created = int(time.time())
        self._logprobs = bool(asked.logprobs)
        self._calls: dict[int, int] = {}  # calls sent of each output

    def chunks(self, index: int, piece: Piece) -> list[ChatChunk]:
        """The events of a stream for what is new of an output."""
        deltas = []
        if index not in self._calls:
            self._calls[index] = 0
            deltas.append(Delta(role="assistant", content=""))
        for part in piece.parts:
            if isinstance(part, ToolCall):
                deltas.append(Delta(tool_calls=[self._call_chunk(index, part)]))
            else:
                deltas.append(Delta(content=part))
        if piece.finish or (piece.scored and not piece.parts):
            deltas.append(Delta())
        chunks = []
        for delta in deltas:
            chunks.append(self._chunk([ChunkChoice(index=index, delta=delta)]))
        if chunks:  # the last one ends the output
            last = chunks[-1].choices[0]
            last.finish_reason = piece.finish
            last.logprobs = self._scored(piece)
        return chunks

    def usage(self, usage: Usage) -> ChatChunk:
        """The last event of a stream."""
        return self._chunk([], usage)

    def whole(self, pieces: Sequence[Piece], usage: Usage) -> ChatResponse:
        """The answer in one."""
        choices = []
        for index, piece in enumerate(pieces):
            choice = ChatChoice(
                index=index,
                message=_message(piece),
                logprobs=self._scored(piece),
                finish_reason=piece.finish or "stop",
            )
            choices.append(choice)
        return ChatResponse(
            id=self._id, created=self._created, model=self._model, choices=choices, usage=usage
        )

    def _chunk(self, choices: list[ChunkChoice], usage: Usage | None = None) -> ChatChunk:
        return ChatChunk(
            id=self._id, created=self._created, model=self._model, choices=choices, usage=usage
        )

    def _call_chunk(self, index: int, call: ToolCall) -> ToolCallChunk:
        place = self._calls[index]
        self._calls[index] += 1
        return ToolCallChunk(index=place, id=_call_id(), function=_called(call))

    def _scored(self, piece: Piece) -> ChatLogprobs | None:
        if not self._logprobs:
            return None
        return ChatLogprobs(content=[_token_logprob(token) for token in piece.scored])


def _calls(asked: ChatRequest) -> tuple[GrammarSpec | None, Callable[[], Parser]]:
    """The grammar of a required call, if one is, and the maker of the answer's parser.

    Raises:
        ApiError: 400 if a call is required that the tools do not have.
    """
    choice = asked.tool_choice
    names = [tool.function.name for tool in asked.tools or ()]
    if choice == "none" or (not names and choice in (None, "auto")):
        return None, PlainText
    if choice in (None, "auto"):
        return None, lambda: CallsInText(names)
    if not names:
        raise bad_request("tool_choice requires a call, and there are no tools.", param="tools")
    name = ""
    if isinstance(choice, ToolChoice):
        name = choice.function.name
        if name not in names:
            raise bad_request(
                f'tool_choice requires "{name}", and the tools are {", ".join(names)}.',
                param="tool_choice",
            )
    several = asked.parallel_tool_calls is not False
    structure = required_calls(_tools(asked), name=name, several=several)
    return structure, lambda: RequiredCalls(name)


def _prompt(service: Service, asked: ChatRequest) -> str:
    """The conversation by the model's template.

    Raises:
        ApiError: 400 if there is no template, or it does not take the conversation.
    """
    template = service.texts.template
    if template is None:
        raise bad_request(
            f"{service.texts.model} has no chat template: it continues texts. Use /v1/completions.",
            code="no_chat_template",
        )
    tools = []
    if asked.tool_choice != "none":
        tools = _tools(asked)
    _check_contents(asked.messages)
    try:
        return template.render(
            [_template_message(message) for message in asked.messages],
            tools=tools,
            generation_prompt=asked.add_generation_prompt is not False,
            variables=asked.chat_template_kwargs,
        )
    except BadInput as error:
        raise bad_request(str(error), param="messages") from None


def _check_contents(messages: Sequence[Message]) -> None:
    """Refuse messages without content, other than calls of tools.

    Raises:
        ApiError: 400 if one has none.
    """
    for index, message in enumerate(messages):
        is_call = message.role == "assistant" and message.tool_calls
        if not isinstance(message.content, str | list) and not is_call:
            raise bad_request(
                f"messages[{index}] has no content. Only an assistant's message with tool_calls "
                "may leave it out.",
                param="messages",
            )


def _tools(asked: ChatRequest) -> list[dict[str, Any]]:
    tools: list[Tool] = asked.tools or []
    return [msgspec.to_builtins(tool) for tool in tools]


def _template_message(message: Message) -> dict[str, Any]:
    """A message as a dict, with its parts of text joined."""
    fields: dict[str, Any] = msgspec.to_builtins(message)
    if isinstance(message.content, list):
        fields["content"] = "\n".join(part.text for part in message.content)
    return fields


def _message(piece: Piece) -> AnswerMessage:
    calls = []
    for call in piece.calls:
        calls.append(ToolCalled(id=_call_id(), function=_called(call)))
    content: str | None = piece.text
    if calls:
        content = piece.text or None
    return AnswerMessage(content=content, tool_calls=calls or None)


def _call_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"


def _called(call: ToolCall) -> FunctionCalled:
    return FunctionCalled(name=call.name, arguments=call.arguments)


def _token_logprob(token: ScoredToken) -> TokenLogprob:
    top = []
    for written, logprob in token.top:
        text = written.decode(errors="replace")
        top.append(TopLogprob(token=text, logprob=logprob, bytes=list(written)))
    return TokenLogprob(
        token=token.written.decode(errors="replace"),
        logprob=token.logprob,
        bytes=list(token.written),
        top_logprobs=top,
    )
