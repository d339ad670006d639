"""Chat templates: a conversation as the prompt that the model was trained on.

Templates are programs of the model's publisher in the language of Jinja, written for the package
transformers: they run in a sandbox, with what transformers gives them.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from shardwise.errors import BadFile, BadInput, MissingExtra
from shardwise.serve.text.vocabulary import Vocabulary

# The template of a model that has none, where its tokenizer has these tokens.
CHATML_START = "<|im_start|>"
CHATML_END = "<|im_end|>"
CHATML = """{% for message in messages %}
<|im_start|>{{ message['role'] + '\\n' + (message['content'] or '') }}<|im_end|>
{% endfor %}
{% if add_generation_prompt %}
<|im_start|>assistant
{% endif %}"""


class ChatTemplate:
    """A compiled chat template.

    Args:
        source: text of the template.
        special_tokens: texts of tokens by the names under which templates use them.

    Raises:
        BadFile: the template has a syntax error.
        MissingExtra: the package jinja2 is not installed.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        try:
            import jinja2
        except ImportError:
            raise MissingExtra(
                "chat templates need the package jinja2: pip install 'shardwise[serve]'"
            ) from None
        try:
            self._template = _environment().from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise BadFile(
                f"the chat template has an error in line {error.lineno}: {error.message}."
            ) from None
        self._special_tokens = dict(special_tokens)
        self.takes_tools = "tools" in source
        self._knows_developer = "developer" in source

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        generation_prompt: bool = True,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt of a conversation.

        Args:
            messages: each with `role`, and `content` or `tool_calls`.
            tools: descriptions of functions that the model may call.
            generation_prompt: whether the prompt ends with the beginning of an answer.
            variables: further variables of the template, such as `enable_thinking`.

        Raises:
            BadInput: the template does not take these messages.
        """
        if tools and not self.takes_tools:
            raise BadInput(
                "tools were given, and the chat template of this model takes none. Ask without "
                'tools, or with "tool_choice": "none".'
            )
        context = {**self._special_tokens, **(variables or {})}
        context["tools"] = list(tools) or None
        context["documents"] = None
        context["add_generation_prompt"] = generation_prompt
        rendered = [self._message(message) for message in messages]
        try:
            return str(self._template.render(context, messages=rendered))
        except Exception as error:  # a program of somebody else, over what a client sent
            try:  # a template for texts alone, where a message that calls tools has none
                with_texts = [m | {"content": m.get("content") or ""} for m in rendered]
                return str(self._template.render(context, messages=with_texts))
            except Exception:
                raise BadInput(
                    f"the chat template of this model does not take these messages: {error}"
                ) from None

    def _message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """A message as templates expect it: arguments of calls are values, not JSON."""
        rendered = dict(message)
        if rendered["role"] == "developer" and not self._knows_developer:
            rendered["role"] = "system"
        if rendered.get("tool_calls"):
            rendered["tool_calls"] = [_call(call) for call in rendered["tool_calls"]]
        return rendered


def chat_template(
    source: str | None, special_tokens: Mapping[str, str], vocabulary: Vocabulary
) -> ChatTemplate | None:
    """The template of a model; ChatML if it has none and its tokenizer reads ChatML's tokens."""
    if source is None:
        for text in (CHATML_START, CHATML_END):
            if vocabulary.encode(text) != [vocabulary.token(text)]:  # read as text, if at all
                return None
        source = CHATML
    return ChatTemplate(source, special_tokens)


def _environment() -> Any:
    """The sandbox, with the functions that transformers gives to templates."""
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message: str) -> NoReturn:
        raise jinja2.TemplateError(message)

    def strftime_now(form: str) -> str:
        return datetime.datetime.now().strftime(form)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_generation(), "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is; the filter of Jinja escapes it for HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _generation() -> Any:
    """The block `{% generation %}`, which marks answers for training and is rendered as it is."""
    from jinja2.ext import Extension

    class Generation(Extension):
        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    return Generation


def _call(call: Mapping[str, Any]) -> dict[str, Any]:
    """A call of a tool whose arguments are a value if they are the JSON of an object."""
    function = dict(call["function"])
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        arguments = None
    if isinstance(arguments, dict):
        function["arguments"] = arguments
    return {**call, "function": function}
