"""Calls of tools in the text of an answer.

Models write calls as they were trained to. Two formats are read:

    <tool_call>{"name": "f", "arguments": {...}}</tool_call>   Hermes, Qwen: any number, anywhere
    {"name": "f", "parameters": {...}}                         Llama 3: the answer, `;` between

A client may also require a call: a grammar then makes the answer JSON, and the whole of it is read.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from shardwise.serve.text.detokenize import StopStrings
from shardwise.serve.text.structure import JSON_SCHEMA, GrammarSpec

OPEN = "<tool_call>"
CLOSE = "</tool_call>"
PYTHON_TAG = "<|python_tag|>"  # may begin a call of Llama 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call; `arguments` is JSON, as the model wrote it."""

    name: str
    arguments: str


Part = str | ToolCall


class Parser(Protocol):
    """Takes the text of an answer apart; what it gives does not depend on the text's pieces."""

    def push(self, text: str) -> list[Part]:
        """Text and calls that are certain by now."""
        ...

    def finish(self) -> list[Part]:
        """The rest, at the end of the answer."""
        ...


class PlainText:
    """Parser of an answer without calls."""

    def push(self, text: str) -> list[Part]:
        return _text(text)

    def finish(self) -> list[Part]:
        return []


class CallsInText:
    """Parser of an answer that may have calls, of both formats.

    Args:
        names: of the tools; JSON that names none of them is text, unless it is between tags.
    """

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._begun = False
        self._whole = ""  # an answer that may be calls of Llama 3
        self._call = ""  # what follows an opening tag
        self._tag: StopStrings | None = None  # the tag that comes next
        self._inside = False

    def push(self, text: str) -> list[Part]:
        if not self._begun:
            self._whole += text
            start = self._whole.lstrip()
            if not start or (PYTHON_TAG.startswith(start) and start != PYTHON_TAG):
                return []
            self._begun = True
            if start.startswith(("{", PYTHON_TAG)):
                return []
            text = self._whole
            self._whole = ""
        if self._whole:
            self._whole += text
            return []
        return self._tagged(text)

    def finish(self) -> list[Part]:
        if self._whole:
            calls = _llama_calls(self._whole, self._names)
            return [*calls] or _text(self._whole)
        if self._inside:
            return _tagged_call(self._call + self._next_tag().finish(), closed=False)
        return _text(self._next_tag().finish())

    def _tagged(self, text: str) -> list[Part]:
        parts: list[Part] = []
        while text:
            tag = self._next_tag()
            before = tag.push(text)
            if self._inside:
                self._call += before
            else:
                parts += _text(before)
            if not tag.stopped:
                break
            if self._inside:
                parts += _tagged_call(self._call, closed=True)
                self._call = ""
            text = tag.after
            self._inside = not self._inside
            self._tag = None
        return parts

    def _next_tag(self) -> StopStrings:
        if self._tag is None:
            tag = OPEN
            if self._inside:
                tag = CLOSE
            self._tag = StopStrings([tag])
        return self._tag


class RequiredCalls:
    """Parser of an answer that is JSON by its grammar: see `required_calls`.

    Args:
        name: of the one function whose arguments the answer is; empty for a list of calls.
    """

    def __init__(self, name: str = "") -> None:
        self._name = name
        self._answer = ""

    def push(self, text: str) -> list[Part]:
        self._answer += text
        return []

    def finish(self) -> list[Part]:
        if self._name:
            return [ToolCall(name=self._name, arguments=self._answer)]
        try:
            written = json.loads(self._answer)
        except (ValueError, RecursionError):  # cut off by max_tokens
            return _text(self._answer)
        return [_tool_call(value) for value in written]


def required_calls(
    tools: Sequence[Mapping[str, Any]], *, name: str = "", several: bool = True
) -> GrammarSpec:
    """The grammar of an answer that has to be calls.

    Args:
        tools: descriptions of functions, as clients send them.
        name: the function that has to be called: the answer is its arguments. Empty for any: the
            answer is a list of calls.
        several: whether the list may have several calls.
    """
    calls = []
    for tool in tools:
        function = tool["function"]
        arguments = function.get("parameters") or {"type": "object"}
        if function["name"] == name:
            return GrammarSpec(kind=JSON_SCHEMA, definition=json.dumps(arguments), param="tools")
        properties = {"name": {"const": function["name"]}, "arguments": arguments}
        call = {"type": "object", "properties": properties, "required": ["name", "arguments"]}
        calls.append({**call, "additionalProperties": False})
    schema: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"anyOf": calls}}
    if not several:
        schema["maxItems"] = 1
    return GrammarSpec(kind=JSON_SCHEMA, definition=json.dumps(schema), param="tools")


def _text(text: str) -> list[Part]:
    if text:
        return [text]
    return []


def _tagged_call(written: str, *, closed: bool) -> list[Part]:
    """The call between tags; what is none stays text, with its tags."""
    try:
        value = json.loads(written)
    except (ValueError, RecursionError):
        value = None
    if _is_call(value):
        return [_tool_call(value)]
    text = OPEN + written
    if closed:
        text += CLOSE
    return [text]


def _llama_calls(answer: str, names: Collection[str]) -> list[ToolCall]:
    """The calls that an answer is; none if it is anything else."""
    remaining = answer.strip().removeprefix(PYTHON_TAG)
    calls = []
    while remaining:
        try:
            value, end = json.JSONDecoder().raw_decode(remaining.lstrip())
        except (ValueError, RecursionError):
            return []
        if not _is_call(value) or value["name"] not in names:
            return []
        calls.append(_tool_call(value))
        remaining = remaining.lstrip()[end:].lstrip().removeprefix(";")
    return calls


def _is_call(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return False
    return "arguments" in value or "parameters" in value


def _tool_call(value: Mapping[str, Any]) -> ToolCall:
    arguments = value.get("arguments", value.get("parameters"))
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return ToolCall(name=value["name"], arguments=arguments)
