"""Calls of tools and structured outputs over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI

from shardwise.errors import BadInput
from shardwise.serve.text.structure import CHOICE, JSON_OBJECT, JSON_SCHEMA, REGEX, GrammarSpec
from tests.unit.serve.http.serving import MODEL, Served, serving
from tests.unit.serve.tiny import byte_level

TEMPLATE = """{% if name %}{{ name + "" }}{% endif %}
{% if tools %}
tools: {{ tools | tojson }}
{% endif %}
{% for message in messages %}
{{ message.role }}: {{ message.content or '' }}
{%- for call in message.tool_calls or [] %} {{ call.function.arguments.city }}{% endfor %}
{{ '\\n' }}
{%- endfor %}
"""
MESSAGES: Any = [{"role": "user", "content": "hi"}]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER: Any = {
    "type": "function",
    "function": {"name": "weather", "description": "Of a city.", "parameters": PARAMETERS},
}
ARGUMENTS = '{"city": "Oslo"}'
CALL = f'{{"name": "weather", "arguments": {ARGUMENTS}}}'


class Mask:
    """A mask that allows everything, and is complete after some tokens."""

    def __init__(self, tokens: int) -> None:
        self.left = tokens

    def allowed(self) -> bytes:
        return b"\xff" * 40

    def advance(self, token: int) -> None:
        self.left -= 1

    @property
    def complete(self) -> bool:
        return self.left <= 0


SPECS: list[GrammarSpec] = []


def grammar(spec: GrammarSpec) -> Mask:
    SPECS.append(spec)
    if spec.definition == "(":
        raise BadInput('the pattern "(" has no end.')
    return Mask(1000)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(grammar=grammar, template=TEMPLATE) as running:
        yield running


def streamed(client: OpenAI, **asked: Any) -> tuple[str, list[dict[str, str]], str]:
    """Text, calls and finish reason of a streamed answer."""
    text, finish = "", ""
    calls: list[dict[str, str]] = []
    stream = client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True, **asked)
    for chunk in stream:
        for choice in chunk.choices:
            text += choice.delta.content or ""
            finish = choice.finish_reason or finish
            for call in choice.delta.tool_calls or []:
                assert call.function is not None
                if call.index == len(calls):
                    assert call.id
                    calls.append({"name": call.function.name or "", "arguments": ""})
                calls[call.index]["arguments"] += call.function.arguments or ""
    return text, calls, finish


@pytest.mark.parametrize(
    ("reply", "text", "calls"),
    [
        (f"ok <tool_call>\n{CALL}\n</tool_call>", "ok ", 1),
        (f"<tool_call>{CALL}</tool_call>\n<tool_call>{CALL}</tool_call>", "\n", 2),
        (CALL.replace("arguments", "parameters"), "", 1),
        ("no call at all", "no call at all", 0),
    ],
)
def test_tools_are_called(
    client: OpenAI, served: Served, reply: str, text: str, calls: int
) -> None:
    served.replies.text = reply
    asked: Any = {"tools": [WEATHER], "max_tokens": 500}
    finish = "tool_calls" if calls else "stop"
    expected = [{"name": "weather", "arguments": ARGUMENTS}] * calls
    assert streamed(client, **asked) == (text, expected, finish)
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, **asked)
    choice = answer.choices[0]
    assert (choice.message.content or "", choice.finish_reason) == (text, finish)
    found = [call.function.model_dump() for call in choice.message.tool_calls or []]
    assert found == expected
    prompt = byte_level().decode(served.engine.seen[-1].prompt)
    assert json.loads(prompt.splitlines()[0].removeprefix("tools: ")) == [WEATHER]


def test_calls_and_results_go_back_into_the_prompt(client: OpenAI, served: Served) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": ARGUMENTS}}
    messages: Any = [
        *MESSAGES,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    ]
    client.chat.completions.create(model=MODEL, messages=messages)
    prompt = byte_level().decode(served.engine.seen[-1].prompt)
    assert prompt == "user: hi\nassistant:  Oslo\ntool: rain\n"


def test_tool_choice_none_hides_the_tools(client: OpenAI, served: Served) -> None:
    served.replies.text = CALL
    text, calls, _ = streamed(client, tools=[WEATHER], tool_choice="none")
    assert (text, calls) == (CALL, [])
    assert "tools" not in byte_level().decode(served.engine.seen[-1].prompt)


def test_a_call_can_be_required(client: OpenAI, served: Served) -> None:
    served.replies.text = f"[{CALL}]"
    text, calls, finish = streamed(client, tools=[WEATHER], tool_choice="required")
    assert (text, finish) == ("", "tool_calls")
    assert calls == [{"name": "weather", "arguments": ARGUMENTS}]
    assert SPECS[-1].kind == JSON_SCHEMA
    served.replies.text = ARGUMENTS
    named: Any = {"type": "function", "function": {"name": "weather"}}
    text, calls, finish = streamed(client, tools=[WEATHER], tool_choice=named)
    assert calls == [{"name": "weather", "arguments": ARGUMENTS}]
    assert json.loads(SPECS[-1].definition) == PARAMETERS


@pytest.mark.parametrize(
    ("asked", "spec"),
    [
        (
            {"response_format": {"type": "json_object"}},
            GrammarSpec(kind=JSON_OBJECT),
        ),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": {}},
                }
            },
            GrammarSpec(kind=JSON_SCHEMA, definition="{}"),
        ),
        ({"extra_body": {"guided_regex": "a+"}}, GrammarSpec(kind=REGEX, definition="a+")),
        (
            {"extra_body": {"guided_choice": ["a", "b|c"]}},
            GrammarSpec(kind=CHOICE, definition='["a", "b|c"]'),
        ),
        (
            {"extra_body": {"structured_outputs": {"choice": ["a"]}}},
            GrammarSpec(kind=CHOICE, definition='["a"]'),
        ),
        ({"extra_body": {"guided_json": "{}"}}, GrammarSpec(kind=JSON_SCHEMA, definition="{}")),
        (
            {"extra_body": {"structured_outputs": {"regex": "a+"}}},
            GrammarSpec(kind=REGEX, definition="a+"),
        ),
    ],
)
def test_structures(client: OpenAI, served: Served, asked: Any, spec: GrammarSpec) -> None:
    client.chat.completions.create(model=MODEL, messages=MESSAGES, n=2, **asked)
    first, second = served.engine.seen[-2:]
    assert SPECS[-2:] == [spec, spec]
    assert isinstance(first.mask, Mask)
    assert first.mask is not second.mask


def test_free_text_has_no_mask(client: OpenAI, served: Served) -> None:
    text: Any = {"type": "text"}
    client.chat.completions.create(model=MODEL, messages=MESSAGES, response_format=text)
    assert served.engine.seen[-1].mask is None


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        ({"tool_choice": "required"}, "there are no tools"),
        (
            {
                "tools": [WEATHER],
                "tool_choice": {"type": "function", "function": {"name": "other"}},
            },
            'requires "other", and the tools are weather',
        ),
        ({"extra_body": {"guided_regex": "("}}, r'refused: the pattern "\(" has no end'),
        ({"extra_body": {"guided_regex": "a", "guided_json": {}}}, "given 2 structures"),
        ({"extra_body": {"guided_json": "{"}}, "the schema is no JSON"),
        ({"top_logprobs": 2}, 'needs "logprobs": true'),
    ],
)
def test_what_does_not_go_together(client: OpenAI, asked: Any, problem: str) -> None:
    with pytest.raises(openai.BadRequestError, match=problem):
        client.chat.completions.create(model=MODEL, messages=MESSAGES, **asked)


def test_a_template_that_fails_is_the_clients_error(client: OpenAI) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "[]"}}
    messages: Any = [{"role": "assistant", "tool_calls": [call]}]
    client.chat.completions.create(model=MODEL, messages=messages)  # the arguments stay as they are
    messages[0]["content"] = "x"
    bad: Any = {"chat_template_kwargs": {"name": 1}}
    with pytest.raises(openai.BadRequestError, match="does not take these messages"):
        client.chat.completions.create(model=MODEL, messages=messages, extra_body=bad)
