"""Calls of tools in answers, whole and in pieces."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.serve.text.structure import JSON_SCHEMA
from shardwise.serve.text.tools import (
    CallsInText,
    Parser,
    Part,
    RequiredCalls,
    ToolCall,
    required_calls,
)

NAMES = ("weather", "time")
OSLO = '{"name": "weather", "arguments": {"city": "Oslo"}}'
OSLO_CALL = ToolCall(name="weather", arguments='{"city": "Oslo"}')
LLAMA = '{"name": "weather", "parameters": {"city": "Oslo"}}'

ANSWERS: dict[str, list[Part]] = {
    "Just text, with <tags> and {braces}.": ["Just text, with <tags> and {braces}."],
    f"<tool_call>\n{OSLO}\n</tool_call>": [OSLO_CALL],
    f"Let me see. <tool_call>{OSLO}</tool_call> and": ["Let me see. ", OSLO_CALL, " and"],
    f"<tool_call>{OSLO}</tool_call><tool_call>{OSLO}</tool_call>": [OSLO_CALL, OSLO_CALL],
    f"<tool_call>{OSLO}": [OSLO_CALL],
    '<tool_call>{"name": ': ['<tool_call>{"name": '],
    "a<tool_call>no json</tool_call>b": ["a<tool_call>no json</tool_call>b"],
    "<tool_call>[1]</tool_call>": ["<tool_call>[1]</tool_call>"],
    LLAMA: [OSLO_CALL],
    f"<|python_tag|>{LLAMA}; {LLAMA}": [OSLO_CALL, OSLO_CALL],
    f" {LLAMA} ": [OSLO_CALL],
    '{"name": "other", "parameters": {}}': ['{"name": "other", "parameters": {}}'],
    '{"answer": 42}': ['{"answer": 42}'],
    "{broken": ["{broken"],
    "<|python": ["<|python"],
    "": [],
}


def joined(parts: list[Part]) -> list[Part]:
    """Parts with neighbouring texts as one."""
    found: list[Part] = []
    for part in parts:
        if isinstance(part, str) and found and isinstance(found[-1], str):
            found[-1] += part
        else:
            found.append(part)
    return found


def read(parser: Parser, pieces: list[str]) -> list[Part]:
    parts: list[Part] = []
    for piece in pieces:
        parts += parser.push(piece)
    return joined(parts + parser.finish())


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_calls_are_found(answer: str, size: int) -> None:
    pieces = [answer[start : start + size] for start in range(0, len(answer), size)]
    assert read(CallsInText(NAMES), pieces) == ANSWERS[answer]


@given(st.lists(st.sampled_from([*ANSWERS, "<", "tool_call>", "{", "}", "é"]), max_size=4))
def test_pieces_do_not_matter(parts: list[str]) -> None:
    answer = "".join(parts)
    assert read(CallsInText(NAMES), list(answer)) == read(CallsInText(NAMES), [answer])


def test_text_before_a_call_is_not_held_back() -> None:
    parser = CallsInText(NAMES)
    assert parser.push("Let ") == ["Let "]
    assert parser.push("me <too") == ["me "]


def tool(name: str) -> dict[str, object]:
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


def test_the_grammar_of_a_required_call() -> None:
    spec = required_calls([tool("weather"), tool("time")], several=False)
    schema = json.loads(spec.definition)
    assert spec.kind == JSON_SCHEMA
    assert (schema["minItems"], schema["maxItems"]) == (1, 1)
    consts = [call["properties"]["name"]["const"] for call in schema["items"]["anyOf"]]
    assert consts == ["weather", "time"]


def test_the_grammar_of_a_named_call_is_that_of_its_arguments() -> None:
    spec = required_calls([tool("weather"), tool("time")], name="time")
    assert json.loads(spec.definition) == tool("time")["function"]["parameters"]  # type: ignore[index]


def test_required_calls_are_read() -> None:
    assert read(RequiredCalls(), [f"[{OSLO},", f"{OSLO}]"]) == [OSLO_CALL, OSLO_CALL]
    assert read(RequiredCalls("weather"), ['{"city":', ' "Oslo"}']) == [OSLO_CALL]
    assert read(RequiredCalls(), [f"[{OSLO},"]) == [f"[{OSLO},"]
