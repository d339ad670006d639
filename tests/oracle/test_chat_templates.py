"""Prompts of conversations, against transformers: equal letter by letter, or refused by both."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from shardwise.errors import BadInput
from shardwise.serve.text.chat import ChatTemplate
from tests.oracle.chat_templates import CONVERSATIONS, TEMPLATES, TOOLS
from tests.unit.serve.tiny import byte_level

pytestmark = pytest.mark.oracle

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


@pytest.fixture(scope="module")
def reference() -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.PreTrainedTokenizerFast(tokenizer_object=byte_level(), **SPECIAL)


def with_values(conversation: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A conversation whose arguments are values, as transformers documents them."""
    found = copy.deepcopy(conversation)
    for message in found:
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return found


@pytest.mark.parametrize("prompted", [True, False])
@pytest.mark.parametrize("tools", [False, True])
@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("template", TEMPLATES)
def test_prompts_are_those_of_transformers(
    reference: Any, template: str, conversation: str, tools: bool, prompted: bool
) -> None:
    ours = ChatTemplate(TEMPLATES[template], SPECIAL)
    given = TOOLS if tools and ours.takes_tools else []
    messages = CONVERSATIONS[conversation]
    variables = {"enable_thinking": False}
    try:
        expected = reference.apply_chat_template(
            with_values(messages),
            tools=given or None,
            chat_template=TEMPLATES[template],
            tokenize=False,
            add_generation_prompt=prompted,
            **variables,
        )
    except Exception:
        with pytest.raises(BadInput, match="does not take these messages"):
            ours.render(messages, tools=given, generation_prompt=prompted, variables=variables)
        return
    found = ours.render(messages, tools=given, generation_prompt=prompted, variables=variables)
    assert found == expected


def test_some_conversations_are_refused() -> None:
    with pytest.raises(BadInput, match="roles must alternate"):
        ChatTemplate(TEMPLATES["mistral"], SPECIAL).render(CONVERSATIONS["wrong order"])
